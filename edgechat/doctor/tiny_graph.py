"""The smallest ONNX model that makes a provider compute something, written without the onnx
package: y = x + x for one float.

Field numbers: https://github.com/onnx/onnx/blob/main/onnx/onnx.proto; encoding:
https://protobuf.dev/programming-guides/encoding/
"""

from __future__ import annotations

IR_VERSION, OPSET = 8, 17  # read by every ONNX Runtime that edgechat allows
FLOAT = 1


def tiny_model() -> bytes:
    """Serialised ModelProto with the input ``x`` [1] and the output ``y`` [1], both float32."""
    node = _text(1, "x") + _text(1, "x") + _text(2, "y") + _text(4, "Add")
    graph = _block(1, node) + _text(2, "g") + _block(11, _value("x")) + _block(12, _value("y"))
    return _number(1, IR_VERSION) + _block(7, graph) + _block(8, _number(2, OPSET))


def _value(name: str) -> bytes:
    """ValueInfoProto of a float tensor with one element."""
    shape = _block(1, _number(1, 1))
    return _text(1, name) + _block(2, _block(1, _number(1, FLOAT) + _block(2, shape)))


def _number(field: int, value: int) -> bytes:
    """A varint; every one here fits in its first seven bits."""
    return bytes([field << 3, value])


def _block(field: int, content: bytes) -> bytes:
    """Bytes with their length, which fits in seven bits too."""
    return bytes([field << 3 | 2, len(content)]) + content


def _text(field: int, value: str) -> bytes:
    return _block(field, value.encode())
