"""Graphs that TensorRT refuses, ignores half of or runs badly are refused at export."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from edgechat.errors import UnsupportedModelError
from edgechat.export import export_model, open_source
from edgechat.export.dialects import allow_list
from edgechat.export.dialects.allow_list import check_graph
from edgechat.export.dialects.allow_rules import GraphView

Graphs = dict[str, Any]
Change = Callable[[Any], object]


@pytest.fixture(scope="module")
def graphs(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Graphs:
    """Graphs that pass, by dialect and precision."""
    folder, source = tmp_path_factory.mktemp("graphs"), open_source(str(tiny_folder), print)
    found = {}
    for target in ("jetson-jp7", "jetson-jp6"):
        for precision in ("int8", "int8-weight", "fp16"):
            bundle = export_model(source, folder / (target + precision), precision, target=target)
            model = onnx.load(bundle.path("model.onnx"), load_external_data=False)
            found[f"{target} {precision}"] = model, bundle.manifest.graph.dialect
    return found


def first(model: Any, op: str) -> Any:
    return next(node for node in model.graph.node if node.op_type == op)


def set_input(model: Any, op: str, index: int, name: str) -> None:
    node = first(model, op)
    node.input.extend([""] * (index + 1 - len(node.input)))
    node.input[index] = name


def set_attribute(model: Any, op: str, **values: Any) -> None:
    node = first(model, op)
    kept = [a for a in node.attribute if a.name not in values]
    del node.attribute[:]
    node.attribute.extend(kept)
    node.attribute.extend(helper.make_attribute(k, v) for k, v in values.items())


def constant(model: Any, value: Any, dtype: str) -> str:
    array = np.asarray(value, dtype=dtype)
    name = f"new_{len(model.graph.initializer)}"
    model.graph.initializer.append(numpy_helper.from_array(array, name))
    return name


def rename(model: Any, op: str, new_op: str, domain: str = "") -> None:
    node = first(model, op)
    node.op_type, node.domain = new_op, domain
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))


def cast_in_front(model: Any, op: str, index: int, to: int) -> None:
    node = first(model, op)
    cast = helper.make_node("Cast", [node.input[index]], ["cast"], "new_cast", to=to)
    node.input[index] = "cast"
    model.graph.node.insert(list(model.graph.node).index(node), cast)


def mixed(op: str, index: int, dtype: str = "FLOAT16") -> Change:
    """Input ``index`` of an ``op`` that reads ``dtype`` there comes in the other float type."""

    def change(model: Any) -> None:
        view = GraphView(model)
        node = next(
            node
            for node in model.graph.node
            if node.op_type == op and {view.dtype(name) for name in node.input[-2:]} == {dtype}
        )
        to = TensorProto.FLOAT if dtype == "FLOAT16" else TensorProto.FLOAT16
        cast = helper.make_node("Cast", [node.input[index]], ["cast"], "new_cast", to=to)
        node.input[index] = "cast"
        model.graph.node.insert(list(model.graph.node).index(node), cast)

    return change


def declare(model: Any, output: str, dtype: int) -> None:
    (found,) = [o for o in model.graph.output if o.name == output]
    found.type.tensor_type.elem_type = dtype


def add(model: Any, op: str, inputs: list[str], **attributes: Any) -> None:
    model.graph.node.append(helper.make_node(op, inputs, ["added"], f"{op}_new", **attributes))


def forget_output(model: Any, name: str) -> None:
    (found,) = [o for o in model.graph.output if o.name == name]
    model.graph.output.remove(found)


def open_capacity(model: Any) -> None:
    (cache,) = [i for i in model.graph.input if i.name == "past_key.0"]
    cache.type.tensor_type.shape.dim[2].dim_param = "capacity"


def scale_by_row(model: Any) -> None:
    """The weight-only down-projection's scale as a row-wise one."""
    node = weight_only(model)
    node.input[1] = constant(model, np.full(64, 0.01), "float16")
    node.input[2] = constant(model, np.zeros(64), "int8")
    node.attribute.append(helper.make_attribute("axis", 0))


def weight_only(model: Any) -> Any:
    return next(
        node
        for node in model.graph.node
        if node.op_type == "DequantizeLinear" and node.input[0].endswith(".down")
    )


def without_transpose(model: Any) -> None:
    """Feed the first product the weight as it is stored."""
    product = first(model, "MatMul")
    (turn,) = [n for n in model.graph.node if n.output[0] == product.input[1]]
    product.input[1] = turn.input[0]


JP7, JP6 = "jetson-jp7 int8", "jetson-jp6 int8"
WRONG: dict[str, tuple[str, Change, str, str]] = {
    "attention with two outputs": (
        JP7,
        lambda m: first(m, "Attention").output.append("present"),
        "Attention_",
        "one output",
    ),
    "attention that keeps a cache itself": (
        JP7,
        lambda m: set_input(m, "Attention", 5, "past_value.0"),
        "Attention_",
        "past keys",
    ),
    "causal attention": (
        JP7,
        lambda m: set_attribute(m, "Attention", is_causal=1),
        "Attention_",
        "is_causal",
    ),
    "no mask": (JP7, lambda m: set_input(m, "Attention", 3, ""), "Attention_", "without a mask"),
    "nonpad_kv_seqlen": (
        JP7,
        lambda m: set_input(m, "Attention", 6, "cache_length"),
        "Attention_",
        "nonpad_kv_seqlen",
    ),
    "float32 mask": (
        JP7,
        lambda m: cast_in_front(m, "Attention", 3, TensorProto.FLOAT),
        "Attention_",
        "cast the mask",
    ),
    "float32 attention": (
        JP7,
        lambda m: cast_in_front(m, "Attention", 0, TensorProto.FLOAT),
        "Attention_",
        "reads FLOAT, and only FLOAT16",
    ),
    "soft cap": (
        JP7,
        lambda m: set_attribute(m, "Attention", softcap=30.0),
        "Attention_",
        "softcap",
    ),
    "cache from a node": (
        JP7,
        lambda m: cast_in_front(m, "TensorScatter", 0, TensorProto.FLOAT16),
        "TensorScatter_",
        "input of the network",
    ),
    "cache kept inside": (
        JP7,
        lambda m: forget_output(m, "present_key.0"),
        "TensorScatter_",
        "output of the network",
    ),
    "cache along another axis": (
        JP7,
        lambda m: set_attribute(m, "TensorScatter", axis=-1),
        "TensorScatter_",
        "axis -2",
    ),
    "circular cache": (
        JP7,
        lambda m: set_attribute(m, "TensorScatter", mode="circular"),
        "TensorScatter_",
        "mode linear",
    ),
    "cache of any length": (JP7, open_capacity, "TensorScatter_", "no fixed length"),
    "ONNX Runtime's attention": (
        JP7,
        lambda m: rename(m, "Attention", "GroupQueryAttention", "com.microsoft"),
        "(GroupQueryAttention)",
        "com.microsoft",
    ),
    "8-bit blocks": (
        JP6,
        lambda m: rename(m, "MatMul", "MatMulNBits", "com.microsoft"),
        "(MatMulNBits)",
        "com.microsoft",
    ),
    "integer product": (
        JP6,
        lambda m: rename(m, "MatMul", "MatMulInteger"),
        "(MatMulInteger)",
        "not in this version's table",
    ),
    "dynamic quantisation": (
        JP6,
        lambda m: rename(m, "QuantizeLinear", "DynamicQuantizeLinear"),
        "(DynamicQuantizeLinear)",
        "not in this version's table",
    ),
    "scale known at run time": (
        JP6,
        lambda m: set_input(m, "QuantizeLinear", 1, first(m, "Sigmoid").output[0]),
        "QuantizeLinear_",
        "calibrate",
    ),
    "scale that underflows": (
        JP6,
        lambda m: set_input(m, "QuantizeLinear", 1, constant(m, 1e-9, "float16")),
        "QuantizeLinear_",
        "underflows",
    ),
    "activation scale for each channel": (
        JP6,
        lambda m: set_input(m, "QuantizeLinear", 1, constant(m, np.ones(64), "float16")),
        "QuantizeLinear_",
        "one scale for all channels",
    ),
    "no zero point": (
        JP6,
        lambda m: first(m, "QuantizeLinear").input.pop(),
        "QuantizeLinear_",
        "zero point",
    ),
    "asymmetric": (
        JP6,
        lambda m: set_input(m, "QuantizeLinear", 2, constant(m, 3, "int8")),
        "QuantizeLinear_",
        "symmetrically",
    ),
    "weight-only with a scale a row": (JP6, scale_by_row, "MatMul_", "scale a row"),
    "weight-only with a scale of one": (
        JP6,
        lambda m: weight_only(m).input.__setitem__(1, constant(m, 1, "float16")),
        "MatMul_",
        "exactly 1",
    ),
    "int8 weight stored by columns": (JP7, without_transpose, "MatMul_", "[in, out]"),
    "float weight stored by columns": (
        "jetson-jp7 fp16",
        without_transpose,
        "MatMul_",
        "[in, out]",
    ),
    "scales along the inputs": (
        JP7,
        lambda m: set_attribute(m, "DequantizeLinear", axis=1),
        "DequantizeLinear_",
        "axis 0",
    ),
    "rows of int8 gathered before they are floats": (
        JP7,
        lambda m: set_input(m, "Gather", 0, "embed"),
        "Gather_",
        "reads INT8",
    ),
    "double precision": (
        JP6,
        lambda m: set_attribute(m, "Cast", to=TensorProto.DOUBLE),
        "Cast_",
        "gives DOUBLE",
    ),
    "axes known at run time": (
        JP6,
        lambda m: set_input(m, "ReduceMean", 1, "cache_length"),
        "ReduceMean_",
        "make them a constant",
    ),
    "product of two float types": (JP7, mixed("MatMul", 1), "MatMul_", "mixes FLOAT and FLOAT16"),
    "attention of two float types": (JP7, mixed("Attention", 2), "Attention_", "mixes"),
    "branches of two float types": (JP6, mixed("Where", 2), "Where_", "mixes"),
    "cache and new rows of two float types": (JP6, mixed("Concat", 0), "Concat_", "mixes"),
    "rotation of two float types": (JP6, mixed("Mul", 0), "Mul_", "mixes"),
    "residual and update of two float types": (JP6, mixed("Add", 1, "FLOAT"), "Add_", "mixes"),
    "an output of another type than is declared": (
        JP7,
        lambda m: declare(m, "logits", TensorProto.FLOAT16),
        "Identity_",
        "mixes",
    ),
    "a type nobody can tell": (
        JP6,
        lambda m: add(m, "Sigmoid", ["nowhere"]),
        "Sigmoid_new",
        "cannot be told",
    ),
    "newer norm on 10.3": (
        JP6,
        lambda m: add(m, "RMSNormalization", ["logits", "logits"]),
        "RMSNormalization_new",
        "not in this version's table",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_graphs_are_refused(case: str, graphs: Graphs) -> None:
    which, change, node, reason = WRONG[case]
    model, dialect = graphs[which]
    check_graph(model, dialect)
    wrong = onnx.ModelProto()
    wrong.CopyFrom(model)
    change(wrong)
    with pytest.raises(UnsupportedModelError) as caught:
        check_graph(wrong, dialect)
    message = str(caught.value)
    assert node in message
    assert reason in message
    assert len(message.splitlines()) == 1


def test_newer_operators_are_refused_on_the_older_version(graphs: Graphs) -> None:
    model, _ = graphs[JP7]
    with pytest.raises(UnsupportedModelError, match="opset 24"):
        check_graph(model, "tensorrt_10_3")


def test_export_itself_refuses_and_leaves_nothing(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    operators = {k: v for k, v in allow_list.OPERATORS.items() if k != "Sigmoid"}
    version = allow_list.Version("10.3", (9, 20), operators)
    monkeypatch.setitem(allow_list.VERSIONS, "tensorrt_10_3", version)
    with pytest.raises(UnsupportedModelError, match="Sigmoid"):
        source = open_source(str(tiny_folder), print)
        export_model(source, tmp_path / "b", "fp16", target="jetson-jp6")
    assert list(tmp_path.iterdir()) == []
