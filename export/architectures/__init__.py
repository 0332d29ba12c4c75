"""The model families edgechat exports natively, one small file each."""

from __future__ import annotations

from typing import Any

from edgechat.errors import SourceError, UnsupportedModelError
from edgechat.export.architectures import (
    falcon,
    gemma2,
    gemma3,
    gpt_neox,
    granite,
    llama,
    mistral,
    olmo2,
    phi3,
    qwen2,
    qwen3,
    smollm3,
    stablelm,
)
from edgechat.export.spec import Architecture

ARCHITECTURES: list[Architecture] = [
    llama.ARCHITECTURE,
    mistral.ARCHITECTURE,
    qwen2.ARCHITECTURE,
    qwen3.ARCHITECTURE,
    gemma2.ARCHITECTURE,
    gemma3.ARCHITECTURE,
    phi3.ARCHITECTURE,
    smollm3.ARCHITECTURE,
    granite.ARCHITECTURE,
    olmo2.ARCHITECTURE,
    stablelm.ARCHITECTURE,
    gpt_neox.ARCHITECTURE,
    falcon.ARCHITECTURE,
]


def find_architecture(config: dict[str, Any]) -> Architecture:
    """The architecture of a config's ``model_type``; errors name what is known."""
    model_type = config.get("model_type")
    if not isinstance(model_type, str):
        raise SourceError("the model's config has no model_type; is this a language model folder?")
    for architecture in ARCHITECTURES:
        if model_type in architecture.model_types:
            return architecture
    known = ", ".join(sorted(name for a in ARCHITECTURES for name in a.model_types))
    raise UnsupportedModelError(
        f"model_type {model_type!r} is not supported yet; edgechat exports {known}, and "
        "many others with --exporter optimum."
    )
