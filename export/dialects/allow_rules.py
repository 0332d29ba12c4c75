"""What TensorRT asks of single nodes beyond their operator and types.

A rule gets a node and its graph and returns why the node is refused, with the remedy, or None.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper, shape_inference


class GraphView:
    """Answers what the rules ask about a model."""

    def __init__(self, model: Any) -> None:
        inferred = shape_inference.infer_shapes(model).graph
        self._constants = {t.name: t for t in model.graph.initializer}
        self._producers = {name: node for node in model.graph.node for name in node.output if name}
        self._outputs = {value.name for value in model.graph.output}
        self._inputs = {value.name: value for value in model.graph.input}
        values = [*inferred.input, *inferred.output, *inferred.value_info]
        self._types = {v.name: v.type.tensor_type.elem_type for v in values}
        self._types |= {name: t.data_type for name, t in self._constants.items()}

    def dtype(self, name: str) -> str | None:
        """Such as FLOAT16; None where it cannot be told."""
        code = self._types.get(name, 0)
        return str(TensorProto.DataType.Name(code)) if code else None

    def producer(self, name: str) -> Any:
        """The node that makes ``name``; None for inputs and constants."""
        return self._producers.get(name)

    def is_constant(self, name: str) -> bool:
        return name in self._constants

    def value(self, name: str) -> NDArray[Any] | None:
        """A constant kept in the graph; None for any other."""
        tensor = self._constants.get(name)
        if tensor is None or tensor.data_location == TensorProto.EXTERNAL:
            return None
        return np.asarray(numpy_helper.to_array(tensor))

    def is_output(self, name: str) -> bool:
        return name in self._outputs

    def input_shape(self, name: str) -> list[int] | None:
        """0 for symbolic dimensions; None where ``name`` is no input."""
        value = self._inputs.get(name)
        return None if value is None else [d.dim_value for d in value.type.tensor_type.shape.dim]


Rule = Callable[[Any, GraphView], str | None]


def _attribute(node: Any, name: str, default: Any) -> Any:
    for attribute in node.attribute:
        if attribute.name == name:
            return helper.get_attribute_value(attribute)
    return default


def _given(node: Any, index: int) -> str:
    """The name of an optional input; "" where it is left out."""
    return str(node.input[index]) if len(node.input) > index else ""


def _attention(node: Any, view: GraphView) -> str | None:
    mask = _given(node, 3)
    if sum(1 for name in node.output if name) > 1:
        return "attention may have one output; update the cache with TensorScatter in front of it"
    if _given(node, 4) or _given(node, 5):
        return "it reads past keys; give it the whole cache as keys and values"
    if _given(node, 6):
        return "nonpad_kv_seqlen is read and then ignored; feed a mask"
    if _attribute(node, "is_causal", 0):
        return "is_causal is aligned to the other end of the cache; feed a mask"
    if not mask:
        return "without a mask every slot of the cache is seen; feed one"
    if view.dtype(mask) != view.dtype(node.input[0]):
        return f"its mask is {view.dtype(mask)} and its queries are not; cast the mask"
    if _attribute(node, "softcap", 0.0):
        return "softcap is not implemented; spell attention with MatMul and Tanh"
    return None


def _scatter(node: Any, view: GraphView) -> str | None:
    shape = view.input_shape(node.input[0])
    if shape is None:
        return "the cache it updates must be an input of the network; take it from there"
    if not view.is_output(node.output[0]):
        return "the updated cache must be an output of the network; make it one"
    if not shape[2]:
        return "the cache has no fixed length; export with --capacity"
    if _attribute(node, "axis", -2) != -2:
        return "caches are updated along axis -2 only; lay them out as [B, H, C, D]"
    if _attribute(node, "mode", b"linear") != b"linear":
        return "only the mode linear writes in place; compact the cache before it is full"
    if not _given(node, 2):
        return "without write_indices it writes at slot 0; feed them"
    return None


def _zero_point(node: Any, view: GraphView) -> str | None:
    name = _given(node, 2)
    if not name:
        return "the zero point is left out, which means uint8; give an int8 one"
    value = view.value(name)
    if view.dtype(name) != "INT8" or value is None or value.any():
        return "only an int8 zero point that is 0 is taken; quantise symmetrically"
    return None


def _scale(node: Any, view: GraphView) -> str | None:
    value = view.value(node.input[1])
    if value is None:
        return "its scale is computed when the graph runs, which rules int8 products out; calibrate"
    if not (value > 0).all():
        return "a scale is zero, negative or underflows float16; use the smallest normal number"
    if value.ndim and not view.is_constant(node.input[0]):
        return "activations take one scale for all channels; scale channels in the weights"
    if value.ndim and _attribute(node, "axis", 1) != 0:
        return "scales of weights go along axis 0; store the weight as [out, in]"
    return None


def _weights(node: Any, view: GraphView) -> str | None:
    """How the second factor of a product is stored."""
    weight = node.input[1]
    made_by = view.producer(weight)
    if view.is_constant(weight) or _dequantises_weights(made_by, view):
        return (
            "its weight is stored as [in, out], and an engine keeps that once for every profile; "
            "store [out, in] and put a Transpose in front"
        )
    if made_by is None or made_by.op_type != "Transpose":
        return None
    dequantize = view.producer(made_by.input[0])
    if not _dequantises_weights(dequantize, view) or _is_quantised(node.input[0], view):
        return None
    scale = view.value(dequantize.input[1])
    if scale is None or scale.ndim:
        return (
            "its int8 weight has a scale a row but its input is float, so every step of one token "
            "expands the weight; use one scale and multiply the product by the rest"
        )
    if scale == 1:
        return "a scale of exactly 1 keeps the int8 weight from being fused; use another"
    return None


def _dequantises_weights(node: Any, view: GraphView) -> bool:
    return (
        node is not None and node.op_type == "DequantizeLinear" and view.is_constant(node.input[0])
    )


def _is_quantised(name: str, view: GraphView) -> bool:
    made_by = view.producer(name)
    return made_by is not None and made_by.op_type == "DequantizeLinear"


def _axes(node: Any, view: GraphView) -> str | None:
    index = 3 if node.op_type == "Slice" else 1
    name = _given(node, index)
    if name and not view.is_constant(name):
        return "its axes are computed when the graph runs; make them a constant"
    return None


RULES: dict[str, tuple[Rule, ...]] = {
    "Attention": (_attention,),
    "TensorScatter": (_scatter,),
    "QuantizeLinear": (_zero_point, _scale),
    "DequantizeLinear": (_zero_point, _scale),
    "MatMul": (_weights,),
    **dict.fromkeys(("ReduceSum", "ReduceMean", "ReduceMax"), (_axes,)),
    **dict.fromkeys(("Squeeze", "Unsqueeze", "Slice"), (_axes,)),
}
