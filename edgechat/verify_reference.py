"""A bundle's original, as transformers runs it in float32. Needs the extra ``verify``."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from edgechat.bundle import Manifest
from edgechat.errors import SettingsError, SourceError

Ids = NDArray[np.int64]
Logits = NDArray[np.float32]
SAME = {"mistral": "llama"}  # what bundles made from GGUF files say, which know no Mistral
SIZES = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads")


class Reference:
    """A Hugging Face folder or a GGUF file, loaded without network, remote code or pickle.

    Raises SourceError when transformers cannot load it, and SettingsError when it is another
    model than the bundle of ``manifest``, which is seen before weights are read.
    """

    def __init__(self, path: Path, manifest: Manifest) -> None:
        if not path.exists():
            raise SourceError(
                f"{path} does not exist; give the Hugging Face folder (or the .gguf file) that the "
                "bundle was made from."
            )
        transformers.utils.logging.set_verbosity_error()
        transformers.utils.logging.disable_progress_bar()
        self._path = path
        self._options: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
        if path.is_file():
            self._options["gguf_file"] = path.name
            path = path.parent
        self._folder = str(path)
        config = self._load(transformers.AutoConfig)
        self.config = config.get_text_config()
        self._check(manifest)
        self._tokenizer = self._load(transformers.AutoTokenizer)
        pickled = {} if "gguf_file" in self._options else {"use_safetensors": True}
        self._model, report = self._load(
            transformers.AutoModelForCausalLM,
            dtype=torch.float32,
            output_loading_info=True,
            **pickled,
        )
        if report["missing_keys"]:
            raise SourceError(
                f"{self._path} lacks weights ({min(report['missing_keys'])}); download it again."
            )
        self._model.eval()
        self._fix_rotary(manifest.max_capacity)
        self._model.generation_config = transformers.GenerationConfig()  # its own may sample

    def logits(self, ids: Ids, last: int) -> Logits:
        """[last, V]: those of the last tokens of ``ids`` [n], read from an empty cache."""
        with torch.no_grad():
            output = self._model(torch.from_numpy(ids)[None], logits_to_keep=last)
        result: Logits = output.logits[0, -last:].float().numpy()
        return result

    def greedy(self, ids: Ids, count: int, ends: Collection[int]) -> tuple[list[int], Logits]:
        """The most probable continuation of ``ids``: up to ``count`` tokens, the last of ``ends``
        included, and what each was chosen from, [tokens, V]."""
        prompt = torch.from_numpy(ids)[None]
        output = self._model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=count,
            eos_token_id=sorted(ends),
            pad_token_id=min(ends),
            output_logits=True,
            return_dict_in_generate=True,
        )
        logits: Logits = torch.cat(output.logits).float().numpy()
        return output.sequences[0, len(ids) :].tolist(), logits

    @property
    def rebuilds_tokenizer(self) -> bool:
        """Whether transformers makes the tokenizer from a GGUF file or a SentencePiece model, which
        it does by rules of its own (it composes accents in SmolLM2's, whose original does not, and
        ranks SentencePiece's merges by id)."""
        return not (self._path / "tokenizer.json").is_file()

    @property
    def has_template(self) -> bool:
        return bool(self._tokenizer.chat_template)

    def render(self, messages: Sequence[dict[str, str]]) -> str | None:
        """The prompt for the next reply; None when the template refuses the messages."""
        try:
            return str(
                self._tokenizer.apply_chat_template(
                    list(messages), tokenize=False, add_generation_prompt=True
                )
            )
        except Exception:  # a template can raise anything: it is code
            return None

    def encode(self, text: str, special: bool) -> list[int] | None:
        """Token ids; ``special``: with what the tokenizer puts around a text. None when it cannot
        take the text."""
        try:
            return list(self._tokenizer(text, add_special_tokens=special).input_ids)
        except Exception:  # the Rust library raises plain Exception
            return None

    def decode(self, ids: list[int]) -> str:
        return str(
            self._tokenizer.decode(
                ids, skip_special_tokens=True, clean_up_tokenization_spaces=False
            )
        )

    def _load(self, kind: Any, **options: Any) -> Any:
        try:
            return kind.from_pretrained(self._folder, **self._options, **options)
        except Exception as error:  # of many libraries, without a common class
            reason = " ".join(str(error).split())[:300]
            raise SourceError(
                f"transformers {transformers.__version__} cannot load {self._path} as a reference "
                f"({reason}); give the Hugging Face folder that the bundle was made from."
            ) from None

    def _fix_rotary(self, capacity: int) -> None:
        """Rotary scaling that depends on the length is fixed for the cache's, as in bundles."""
        for module in self._model.modules():
            kind = getattr(module, "rope_type", None)
            if kind in ("dynamic", "longrope"):
                init = ROPE_INIT_FUNCTIONS[kind]
                cpu = torch.device("cpu")
                module.inv_freq, module.attention_scaling = init(module.config, cpu, capacity)
                module.rope_type = "fixed"

    def _check(self, manifest: Manifest) -> None:
        """SettingsError unless architecture and sizes are the bundle's."""
        d, found = manifest.dims, self.config.model_type
        if manifest.architecture not in (found, SAME.get(found)):
            raise SettingsError(
                f"the reference {self._path} is a {found} model, the bundle {manifest.name} a "
                f"{manifest.architecture} one; give the model that the bundle was made from."
            )
        sizes = (d.vocab_size, d.hidden_size, d.num_layers, d.num_heads)
        for name, mine in zip(SIZES, sizes, strict=True):
            theirs = getattr(self.config, name, None)
            if theirs != mine:
                raise SettingsError(
                    f"the reference {self._path} is another model: its {name} is {theirs}, the "
                    f"bundle's is {mine}; give the model that the bundle was made from."
                )
