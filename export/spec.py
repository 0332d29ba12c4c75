"""What a decoder is, and the weights it is made of, independent of any source or backend."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, Literal, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]
Ids = NDArray[np.int64]
Activation = Literal["silu", "gelu", "gelu_tanh"]


@dataclass(frozen=True)
class RotarySpec:
    """Rotary embedding in the half-split ("rotate_half") convention of Hugging Face Llama.

    ``inv_freq`` holds the angle per position of each pair, [dim / 2] float64, after any scaling;
    ``attention_factor`` multiplies cos and sin (YaRN's temperature; 1 elsewhere).
    """

    dim: int
    inv_freq: tuple[float, ...]
    attention_factor: float
    kind: str


@dataclass(frozen=True)
class DecoderSpec:
    """Dimensions and choices of a decoder-only transformer.

    Every norm is an RMSNorm (arXiv 1910.07467); a model with ``layer_norm`` is read as one, see
    ``export/architectures/checkpoint.py``. ``rotary`` and ``windows`` have an entry a layer: None
    leaves keys unrotated; a window is how many of the last tokens, itself included, a query
    sees, 0 all of them. A soft cap c makes x to c * tanh(x / c), 0 leaves x alone. ``gated``:
    act(gate) * up, else act(up). ``parallel``: attention and MLP both read the stream before
    the layer. ``post_norms``: what attention and MLP give is normed before it is added.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    context_length: int
    norm_eps: float
    rotary: tuple[RotarySpec | None, ...]
    windows: tuple[int, ...]
    attention_scale: float
    tied_embeddings: bool
    attention_softcap: float = 0.0
    logit_softcap: float = 0.0
    embedding_scale: float = 1.0
    activation: Activation = "silu"
    gated: bool = True
    parallel: bool = False
    layer_norm: bool = False
    post_norms: bool = False

    def __post_init__(self) -> None:
        if self.layer_norm and self.tied_embeddings:
            raise ValueError("a centred embedding cannot be the head too")

    @property
    def q_size(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.num_kv_heads * self.head_dim

    @property
    def rotaries(self) -> tuple[RotarySpec, ...]:
        """The different ones among ``rotary``, in the order they first occur."""
        return tuple(dict.fromkeys(r for r in self.rotary if r is not None))


@dataclass
class Linear:
    """A linear layer as checkpoints store it: ``weight`` [out, in] float32, ``bias`` [out]."""

    weight: Array
    bias: Array | None = None


@dataclass
class Int8Linear:
    """W8A8: ``codes`` [out, in] int8 and one scale a row, weight = codes * scales[:, None].

    Activations are quantised per tensor when the graph runs. With ``hadamard`` = n, every n
    neighbouring input features are first multiplied by the n x n Hadamard matrix (orthonormal),
    which the codes expect.
    """

    codes: NDArray[np.int8]
    scales: Array
    bias: Array | None = None
    hadamard: int = 0


@dataclass
class StaticInt8Linear:
    """Weights as in :class:`Int8Linear`, but inputs rounded by one scale known at export.

    An input is round(x / ``input_scale``) in -128 … 127; None leaves inputs in float
    (weight-only).
    """

    codes: NDArray[np.int8]
    scales: Array
    bias: Array | None = None
    input_scale: float | None = None


AnyLinear = Linear | Int8Linear | StaticInt8Linear
L_co = TypeVar("L_co", covariant=True)


@dataclass(frozen=True)
class LayerWeights(Generic[L_co]):
    """One decoder layer with projections packed the way every dialect wants them.

    ``qkv`` stacks query, key and value rows; ``gate_up`` stacks gate and up rows, or holds up
    rows alone where the MLP is not gated. Norms are gains [hidden]; None means there is no norm
    at that place. ``q_norm`` and ``k_norm`` are [head_dim], for each head by itself, or
    [q_size] and [kv_size], for all heads at once.
    """

    attn_norm: Array | None
    qkv: L_co
    o: L_co
    mlp_norm: Array | None
    gate_up: L_co
    down: L_co
    q_norm: Array | None = None
    k_norm: Array | None = None
    attn_post_norm: Array | None = None
    mlp_post_norm: Array | None = None


class Weights(Protocol[L_co]):
    """Weights read lazily, one layer at a time, so that a model never sits whole in memory.

    Arrays are new at each call: who asks for them may change them.
    """

    def embedding(self) -> Array:
        """Token embedding, [vocab, hidden]."""

    def layer(self, index: int) -> LayerWeights[L_co]: ...

    def final_norm(self) -> Array:
        """[hidden]."""

    def head(self) -> L_co:
        """Vocabulary projection of untied models, [vocab, hidden]."""


ModelWeights = Weights[Linear]


class SourceWeights(ModelWeights, Protocol):
    """Weights as a source has them.

    ``shapes`` names every tensor they are made of; ``shared_table`` is the one that is both
    embedding and head, None where they are two.
    """

    shapes: dict[str, tuple[int, ...]]
    shared_table: str | None


class TensorReader(Protocol):
    """Reads one named tensor of a source as float32; the name is a Hugging Face name."""

    def __call__(self, name: str, shape: tuple[int, ...]) -> Array: ...


@dataclass(frozen=True)
class Architecture:
    """One model family: how its config becomes a spec and where its weights are."""

    model_types: tuple[str, ...]
    spec: Callable[[dict[str, Any], int | None], DecoderSpec]
    weights: Callable[[DecoderSpec, TensorReader, dict[str, Any]], SourceWeights]
