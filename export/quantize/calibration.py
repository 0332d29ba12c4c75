"""Texts that show a model's activations, and the windows of token ids made from them."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from edgechat.errors import SettingsError
from edgechat.paths import read_text

WINDOW = 512  # tokens; each window begins anew, so first-token outliers are seen as often as real
LARGEST = 16  # windows of calibration; more changes nothing measurable
BUILT_IN = "built-in"


def calibration_text(path: Path | None) -> str:
    """The text of ``--calibration FILE``, plain or JSON lines of chat, or the built-in one."""
    if path is None:
        return _built_in("calibration.txt")
    text = read_text(path)
    if path.suffix == ".jsonl":
        text = "\n\n".join(_strings(line, path) for line in text.splitlines() if line.strip())
    if not text.strip():
        raise SettingsError(f"{path} holds no text to calibrate on.")
    return text


def evaluation_text() -> str:
    """The built-in text the loss of quantisation is measured on; never calibrated on."""
    return _built_in("evaluation.txt")


def windows(tokenizer: Tokenizer, text: str, bos: int | None = None) -> NDArray[np.int64]:
    """Token ids [n, WINDOW] (a short text gives one shorter window), at most LARGEST of them.

    Each begins with ``bos`` where the model's texts do: it has the worst outliers of all.
    """
    ids = np.asarray(tokenizer.encode(text, add_special_tokens=False).ids, dtype=np.int64)
    if len(ids) < 2:
        raise SettingsError("the calibration text has fewer than two tokens; give a longer one.")
    size = min(WINDOW, len(ids))
    count = min(len(ids) // size, LARGEST)
    result = ids[: count * size].reshape(count, size)
    if bos is not None:
        result[:, 0] = bos
    return result


def _built_in(name: str) -> str:
    text = resources.files("edgechat.export.quantize") / name
    return text.read_text(encoding="utf-8")


def _strings(line: str, path: Path) -> str:
    """All texts of one JSON line, whatever its layout (messages, turns, prompt/response, …)."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise SettingsError(f"{path} has a line that is not JSON ({error}).") from None
    found: list[str] = []
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, str):
            found.append(item)
        elif isinstance(item, dict):
            stack.extend(reversed([v for k, v in item.items() if k not in ("role", "id")]))
        elif isinstance(item, list):
            stack.extend(reversed(item))
    return "\n".join(found)
