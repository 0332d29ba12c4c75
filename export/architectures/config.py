"""Reading a Hugging Face config strictly: what is not understood is refused by name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from edgechat.errors import SourceError, UnsupportedModelError
from edgechat.export.rotary import padded, rotary_spec
from edgechat.export.spec import Activation, DecoderSpec, RotarySpec

# Fields that change nothing about the forward pass of a decoder.
HARMLESS = frozenset(
    """architectures model_type torch_dtype dtype transformers_version use_cache bos_token_id
    eos_token_id pad_token_id unk_token_id initializer_range pretraining_tp attention_dropout
    hidden_dropout resid_pdrop embd_pdrop is_llama_config tie_word_embeddings name_or_path
    output_attentions output_hidden_states return_dict return_dict_in_generate auto_map
    keys_to_ignore_at_inference id2label label2id problem_type task_specific_params
    is_encoder_decoder is_decoder chunk_size_feed_forward finetuning_task language
    cache_implementation classifier_dropout attn_implementation""".split()
)
HARMLESS_PREFIXES = ("_", "transformers", "unsloth", "torchscript")
ACTIVATIONS: dict[str, Activation] = {
    "silu": "silu",
    "gelu": "gelu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
}
LARGEST = {"num_hidden_layers": 1000, "num_attention_heads": 4096, "head_dim": 4096}
LAYER_TYPES = ("full_attention", "sliding_attention")


class Config:
    """Typed access to config fields; remembers which were read, see :meth:`refuse_rest`.

    A field that is absent means what transformers' config class of the family takes for it, which
    is not always what null means: families put theirs (``DEFAULTS``) in front of the config's.
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values
        self._read: set[str] = set()

    def integer(self, name: str, default: int | None = None) -> int:
        """A whole number that some model could have; SourceError when it is missing or none."""
        value = self.optional(name)
        if value is None:
            value = default
        if value is None:
            raise SourceError(f"the model's config lacks {name!r}; complete config.json.")
        if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
            raise SourceError(f"the model's config says {name} = {value!r}, not a whole number.")
        if value > LARGEST.get(name, 1 << 24):
            raise SourceError(f"the model's config says {name} = {value:,}, which no model has.")
        return value

    def whole(self, name: str, default: int) -> int:
        """A whole number of zero or more."""
        value = self.optional(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise SourceError(f"the model's config says {name} = {value!r}, not a whole number.")
        return value

    def number(self, name: str, default: float) -> float:
        value = self.optional(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 1e38:
            raise SourceError(f"the model's config says {name} = {value!r}, not a number above 0.")
        return float(value)

    def flag(self, name: str, default: bool = False) -> bool:
        value = self.optional(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise SourceError(f"the model's config says {name} = {value!r}, not true or false.")
        return value

    def rope(self) -> dict[str, Any]:
        """Rotary settings from ``rope_parameters`` (transformers 5) or the older fields.

        Where both are given they must say the same: transformers 5 reads ``rope_scaling`` alone,
        others ``rope_parameters``. UnsupportedModelError where they differ.
        """
        older = {name: self.optional(name) for name in ("rope_theta", "partial_rotary_factor")}
        older = {name: value for name, value in older.items() if value is not None}
        found = []
        for name in ("rope_parameters", "rope_scaling"):
            scaling = self.optional(name)
            if not isinstance(scaling, dict | None):
                raise SourceError(f"the model's config has {name} = {scaling!r}, not a mapping.")
            if scaling:
                found.append({**older, **scaling})
        if len(found) > 1 and _named_alike(found[0]) != _named_alike(found[1]):
            raise UnsupportedModelError(
                "the model's config sets rope_parameters and rope_scaling, and they differ; remove "
                "the one the model was not trained with."
            )
        return found[0] if found else older

    def optional(self, name: str) -> Any:
        self._read.add(name)
        return self._values.get(name)

    def refuse_rest(
        self, known: Iterable[str] = (), neutral: Mapping[str, Any] = MappingProxyType({})
    ) -> None:
        """Raise UnsupportedModelError for fields nobody read that may change the result.

        Fields that are absent, null, false or zero pass, and ``known`` ones, which the weights
        need or which change nothing in this architecture, and those whose value is as in
        ``neutral``.
        """
        passed = self._read | HARMLESS | set(known)
        rest = [
            f"{name} = {value!r}"
            for name, value in self._values.items()
            if name not in passed
            and not name.startswith(HARMLESS_PREFIXES)
            and value not in (None, False, 0, "", [], {})
            and neutral.get(name, None) != value
        ]
        if rest:
            raise UnsupportedModelError(
                f"the model's config sets {', '.join(rest)}, which this architecture does not "
                "support; refusing rather than exporting a model that answers differently."
            )


def base_spec(
    config: Config,
    architecture: str,
    capacity: int | None,
    theta: float = 10000.0,
    tied: bool = False,
    rotary_share: float | None = None,
    norm_eps: tuple[str, float] = ("rms_norm_eps", 1e-6),
    activation: tuple[str, str] = ("hidden_act", "silu"),
    rope: dict[str, Any] | None = None,
) -> DecoderSpec:
    """What nearly every config says in the same fields, for a Llama-like decoder.

    The other arguments are the family's defaults: base of the rotary frequencies, whether head
    and embedding are one, which share of each head is rotated (None: the family has no such
    setting), two fields' names with their defaults, and rotary settings that are not where
    :meth:`Config.rope` finds them. Raises SourceError or UnsupportedModelError.
    """
    hidden, heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    layers = config.integer("num_hidden_layers")
    kv_heads = config.integer("num_key_value_heads", heads)
    head_dim = config.integer("head_dim", hidden // heads)
    if heads % kv_heads:
        raise UnsupportedModelError(
            f"{heads} attention heads (num_attention_heads) cannot share {kv_heads} KV heads "
            "(num_key_value_heads) evenly; the config is wrong."
        )
    if head_dim % 16:
        raise UnsupportedModelError(
            f"head size {head_dim} is not a multiple of 16, which the attention kernel requires."
        )
    rope = config.rope() if rope is None else rope
    rotary = rotary_of(config, rope, head_dim, capacity, theta, rotary_share)
    return DecoderSpec(
        architecture=architecture,
        vocab_size=config.integer("vocab_size"),
        hidden_size=hidden,
        intermediate_size=config.integer("intermediate_size"),
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        context_length=config.integer("max_position_embeddings"),
        norm_eps=config.number(*norm_eps),
        rotary=(rotary,) * layers,
        windows=(0,) * layers,
        attention_scale=head_dim**-0.5,
        tied_embeddings=config.flag("tie_word_embeddings", tied),
        activation=_activation(activation[0], config.optional(activation[0]) or activation[1]),
    )


def rotary_of(
    config: Config,
    rope: dict[str, Any],
    head_dim: int,
    capacity: int | None,
    theta: float,
    share: float | None = None,
) -> RotarySpec:
    """Rotary of one kind of layer, from ``rope`` as :meth:`Config.rope` gives it."""
    context = config.integer("max_position_embeddings")
    found = rope.get("partial_rotary_factor")
    part = found if found is not None else 1.0 if share is None else share
    if isinstance(part, bool) or not isinstance(part, (int, float)) or not 0 < part <= 1:
        raise SourceError(f"the model's config says partial_rotary_factor = {part!r}, not a share.")
    dim = int(head_dim * part)
    if (share is None and part != 1) or dim % 2 or not dim:
        raise UnsupportedModelError(
            f"rotary on {dim} of {head_dim} features of a head (partial_rotary_factor {part}) is "
            "not supported for this architecture."
        )
    base = rope.get("rope_theta")
    base = theta if base is None else base
    if isinstance(base, bool) or not isinstance(base, (int, float)) or not 1 < base < 1e38:
        raise SourceError(f"the model's config says rope_theta = {base!r}, not a number above 1.")
    return padded(rotary_spec(dim, float(base), rope, context, capacity or context))


def layer_windows(config: Config, slides: Sequence[bool]) -> tuple[int, ...]:
    """The window of each layer: ``sliding_window`` where ``layer_types`` says so, else 0.

    ``slides`` stands for a config without ``layer_types``.
    """
    return windows_of(config, sliding_layers(config, slides))


def sliding_layers(config: Config, slides: Sequence[bool]) -> Sequence[bool]:
    """Which layers are ``sliding_attention``; ``slides`` where ``layer_types`` is absent."""
    types = config.optional("layer_types")
    if types is not None:
        odd = [t for t in types if t not in LAYER_TYPES] if isinstance(types, list) else [types]
        if odd or len(types) != len(slides):
            raise UnsupportedModelError(
                f"layer_types is {odd[0] if odd else types!r}; edgechat knows one of "
                f"{' and '.join(LAYER_TYPES)} for each layer."
            )
        slides = [t == "sliding_attention" for t in types]
    return slides


def windows_of(config: Config, slides: Sequence[bool]) -> tuple[int, ...]:
    """``sliding_window`` for the layers that slide, 0 (none) for others or where it is null."""
    window = config.optional("sliding_window")
    if window is None:
        return (0,) * len(slides)
    size = config.integer("sliding_window")
    return tuple(size if slide else 0 for slide in slides)


def _named_alike(rope: dict[str, Any]) -> dict[str, Any]:
    """``rope`` with its kind, if any, under the newer name."""
    kind = rope.get("rope_type", rope.get("type", "default"))
    return {**rope, "type": kind, "rope_type": kind}


def _activation(field: str, name: Any) -> Activation:
    if name not in ACTIVATIONS:
        raise UnsupportedModelError(
            f"{field} {name!r} is not supported; only {', '.join(ACTIVATIONS)} are."
        )
    return ACTIVATIONS[name]
