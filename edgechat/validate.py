"""Plain data (JSON, YAML) into frozen dataclasses, strictly: no unknown, missing or odd values."""

from __future__ import annotations

import dataclasses
import types
import typing
from typing import Any, TypeVar

T = TypeVar("T")


class Invalid(ValueError):
    """Names the field and what is wrong with it; callers turn it into their own error."""


def build(cls: type[T], data: Any, where: str = "") -> T:
    """An instance of dataclass ``cls`` from a mapping; Invalid names the first bad field."""
    if not isinstance(data, dict):
        raise Invalid(f"{where or 'the file'} must be a mapping, not {type(data).__name__}")
    hints = typing.get_type_hints(cls)
    fields = {f.name: f for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
    for name in data:
        if name not in fields:
            raise Invalid(f"unknown field {_join(where, str(name))!r}")
    values = {}
    for name, field in fields.items():
        if name in data:
            values[name] = _value(hints[name], data[name], _join(where, name))
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise Invalid(f"field {_join(where, name)!r} is missing")
    return cls(**values)


def _value(hint: Any, value: Any, where: str) -> Any:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        if value is None and type(None) in args:
            return None
        (hint,) = [a for a in args if a is not type(None)]
        return _value(hint, value, where)
    if origin is tuple and isinstance(value, list):
        return tuple(_value(args[0], v, f"{where}[{i}]") for i, v in enumerate(value))
    if origin is dict and isinstance(value, dict):
        return {str(k): _value(args[1], v, _join(where, str(k))) for k, v in value.items()}
    if dataclasses.is_dataclass(hint):
        return build(typing.cast(type, hint), value, where)
    if hint is Any:
        return value
    if hint is float and isinstance(value, int) and abs(value) < 1 << 53 and value is not True:
        return float(value)
    plain = isinstance(hint, type) and isinstance(value, hint)
    if plain and not (isinstance(value, bool) and hint is not bool):
        return value
    expected = "a list" if origin is tuple else getattr(hint, "__name__", str(hint))
    raise Invalid(f"field {where!r} is {_short(value)}, expected {expected}")


def _join(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."
