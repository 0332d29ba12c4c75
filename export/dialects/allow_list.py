"""What each TensorRT version is known to take, checked at export: where the remedy is at hand.

The operators and types are those of NVIDIA's tables (onnx-tensorrt, docs/operators.md), the rules
what its parser, its builder and engine sizes showed. Builders of other versions are more lenient,
so that a graph one of them builds may still fail on the device.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from edgechat.errors import UnsupportedModelError
from edgechat.export.dialects.allow_rules import RULES, GraphView

FLOAT = frozenset({"FLOAT", "FLOAT16"})
NUMBER = FLOAT | {"INT32", "INT64"}
ANY = NUMBER | {"BOOL"}
INT8 = frozenset({"INT8"})

# operator: types of the first input, types of the outputs
OPERATORS: dict[str, tuple[frozenset[str], frozenset[str]]] = {
    **dict.fromkeys("Add Sub Mul Div Max Min Neg Sum Abs Relu".split(), (NUMBER, NUMBER)),
    **dict.fromkeys("Range ReduceSum ReduceMean ReduceMax".split(), (NUMBER, NUMBER)),
    **dict.fromkeys("ScatterElements GatherElements".split(), (NUMBER, NUMBER)),
    **dict.fromkeys("MatMul Softmax LogSoftmax Sigmoid Tanh Gelu Erf".split(), (FLOAT, FLOAT)),
    **dict.fromkeys("Sqrt Reciprocal Pow Exp Log Cos Sin Clip".split(), (FLOAT, FLOAT)),
    **dict.fromkeys("Cast Concat Expand Gather GatherND".split(), (ANY, ANY)),
    **dict.fromkeys("Identity Reshape Transpose Unsqueeze Squeeze".split(), (ANY, ANY)),
    **dict.fromkeys("Slice Split Tile Where Shape Trilu".split(), (ANY, ANY)),
    **dict.fromkeys("Less LessOrEqual Greater GreaterOrEqual Equal".split(), (NUMBER, ANY)),
    **dict.fromkeys("And Or Not".split(), (frozenset({"BOOL"}), frozenset({"BOOL"}))),
    "QuantizeLinear": (FLOAT, INT8 | {"UINT8"}),  # which one is a rule's business
    "DequantizeLinear": (INT8, FLOAT),
}
HALF = frozenset({"FLOAT16"})
NEWER: dict[str, tuple[frozenset[str], frozenset[str]]] = {
    "Attention": (HALF, HALF),
    "TensorScatter": (FLOAT, FLOAT),
    "RotaryEmbedding": (FLOAT, FLOAT),
    "RMSNormalization": (FLOAT, FLOAT),
}


@dataclass(frozen=True)
class Version:
    """``opsets``: the oldest and newest of the operators' standard domain that is read."""

    name: str
    opsets: tuple[int, int]
    operators: dict[str, tuple[frozenset[str], frozenset[str]]]


VERSIONS = {
    "tensorrt_10_3": Version("10.3", (9, 20), OPERATORS),
    "tensorrt_10_15": Version("10.15", (9, 24), OPERATORS | NEWER),
}


def check_graph(model: Any, dialect: str) -> None:
    """UnsupportedModelError that names the first node the dialect's TensorRT would not take, or
    take and run badly, and why. ``model`` is an onnx.ModelProto, its weights outside or not."""
    version = VERSIONS[dialect]
    for opset in model.opset_import:
        oldest, newest = version.opsets
        if opset.domain in ("", "ai.onnx") and not oldest <= opset.version <= newest:
            raise UnsupportedModelError(
                f"the graph is of opset {opset.version}, but TensorRT {version.name} reads "
                f"{oldest} to {newest}; export for another --target."
            )
    for node in model.graph.node:
        _refuse(version, node, _operator(node, version))
    view = GraphView(model)
    for node in model.graph.node:
        _refuse(version, node, _types(node, view, version))
        for rule in RULES.get(node.op_type, ()):
            _refuse(version, node, rule(node, view))
        _refuse(version, node, _one_float(node, view))


def _refuse(version: Version, node: Any, reason: str | None) -> None:
    if reason is not None:
        raise UnsupportedModelError(
            f"TensorRT {version.name} does not take the node {node.name} ({node.op_type}): "
            f"{reason}."
        )


def _operator(node: Any, version: Version) -> str | None:
    if node.domain not in ("", "ai.onnx"):
        return f"{node.domain} is not a domain of standard operators; use those"
    if node.op_type not in version.operators:
        return "the operator is not in this version's table; spell it with others"
    return None


def _one_float(node: Any, view: GraphView) -> str | None:
    """Engines are strongly typed: nothing is converted but by Cast, to no other type than it."""
    names = node.input if node.op_type == "Cast" else (*node.input, *node.output)
    found = {name: view.dtype(name) for name in names if name}
    if unknown := [name for name, dtype in found.items() if dtype is None]:
        return f"the type of {unknown[0]} cannot be told; give it by a Cast"
    floats = sorted(FLOAT & {dtype for dtype in found.values() if dtype is not None})
    return f"it mixes {' and '.join(floats)}; cast one of them" if len(floats) > 1 else None


def _types(node: Any, view: GraphView, version: Version) -> str | None:
    types = version.operators[node.op_type]
    checks = ((node.input[:1], types[0], "reads"), (node.output, types[1], "gives"))
    for names, allowed, what in checks:
        for name in filter(None, names):
            found = view.dtype(name)
            if found is not None and found not in allowed:
                return f"it {what} {found}, and only {', '.join(sorted(allowed))} are taken"
    return None
