"""What ONNX Runtime has CUDA kernels for, checked at export: it runs the rest on the CPU, silently,
with copies to and fro.

The table holds what the dialect ``ort_cuda`` needs, of the versions from 1.23 on, in opset 18
(Microsoft's docs/OperatorKernels.md).
"""

from __future__ import annotations

from typing import Any

from onnx import TensorProto, helper

from edgechat.errors import UnsupportedModelError

FLOAT = frozenset({"FLOAT", "FLOAT16"})
INTEGER = frozenset({"INT32", "INT64"})
NUMBER = FLOAT | INTEGER
ANY = NUMBER | {"INT8", "UINT8", "BOOL"}
OPSET = 18

# operator, in Microsoft's domain if it has a dot: types of the input that it computes with
KERNELS: dict[str, frozenset[str]] = {
    **dict.fromkeys("Add Sub Mul Div GreaterOrEqual Less".split(), NUMBER),
    **dict.fromkeys("MatMul Softmax LogSoftmax Sigmoid Tanh ReduceSum Relu".split(), FLOAT),
    **dict.fromkeys(
        "Cast Gather Identity Reshape Squeeze Unsqueeze Concat Slice Shape".split(), ANY
    ),
    **dict.fromkeys("Split Transpose GatherND Where".split(), NUMBER),
    "And": frozenset({"BOOL"}),
    "SimplifiedLayerNormalization": FLOAT,
    **dict.fromkeys(
        ".SkipSimplifiedLayerNormalization .RotaryEmbedding .FusedMatMul .MatMulNBits .QuickGelu "
        ".Gelu .FastGelu".split(),
        FLOAT,
    ),
    ".GroupQueryAttention": frozenset({"FLOAT16"}),
}
COMPUTED = {"Where": 1}  # which input that is, where it is not the first
RESULTS = {"Shape": "INT64", "GreaterOrEqual": "BOOL", "Less": "BOOL"}


def check_cuda(model: Any) -> None:
    """UnsupportedModelError that names the first node ONNX Runtime would not run on CUDA, and why.
    ``model`` is an onnx.ModelProto, its weights outside or not."""
    for opset in model.opset_import:
        if not opset.domain and opset.version != OPSET:
            raise UnsupportedModelError(
                f"the graph is of opset {opset.version}; the CUDA kernels known are of {OPSET}."
            )
    graph = model.graph
    types = {t.name: t.data_type for t in graph.initializer}
    types |= {v.name: v.type.tensor_type.elem_type for v in graph.input}
    names = {name: TensorProto.DataType.Name(code) for name, code in types.items()}
    for node in graph.node:
        name = f".{node.op_type}" if node.domain == "com.microsoft" else node.op_type
        found = names[node.input[COMPUTED.get(name, 0)]]
        if found not in KERNELS.get(name, ()):
            raise UnsupportedModelError(
                f"ONNX Runtime has no CUDA kernel for the node {node.name} ({node.op_type} of "
                f"{found}) and would run it on the CPU; export with --target cpu."
            )
        result = RESULTS.get(name, found)
        if name == "Cast":
            result = TensorProto.DataType.Name(helper.get_attribute_value(node.attribute[0]))
        names.update(dict.fromkeys(node.output, result))
