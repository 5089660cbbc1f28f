"""Batches without rows, for ranks that have none left while others go on; also as a text, sent to them."""

from __future__ import annotations

import ast
import base64
import json
import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch


def empty_like(batch: Any, collate_fn: Callable[[Any], Any] | None = None) -> Any:
    """A batch of the structure of ``batch``, and of no samples.

    Args:
        batch: Tensors and arrays ``(B, ...)``, lists of ``B`` strings or objects, numbers of the batch, and
            mappings, tuples and lists of these.
        collate_fn: The function that made it. Its method ``empty(batch)``, if it has one, makes the result.

    Returns:
        The same structure: tensors and arrays ``(0, ...)`` of the same dtypes and devices, empty lists, and
        zeros.

    Raises:
        TypeError: It has a value of another type, which may depend on the samples.
    """
    make = getattr(collate_fn, "empty", None)
    return make(batch) if callable(make) else _without_rows(batch)


def is_empty(batch: Any) -> bool:
    """Return whether a batch has no samples.

    With ``uneven="pad"``, a rank that has no samples left gets such batches.

    Args:
        batch: A batch of the loader. It is empty if its first tensor or array has the shape ``(0, ...)``;
            without a tensor or array, its first list decides.
    """
    for leaf in _leaves(batch):
        return len(leaf) == 0
    return False


def _leaves(value: Any) -> Any:
    """The values with a row for each sample, tensors and arrays before lists."""
    if isinstance(value, torch.Tensor | np.ndarray):
        if value.ndim:
            yield value
        return
    values = value.values() if isinstance(value, Mapping) else value
    if isinstance(value, Mapping | list | tuple):
        for inner in values:
            yield from _leaves(inner)
    if isinstance(value, list) and not any(map(_is_nested, value)):
        yield value


def _is_nested(value: Any) -> bool:
    return isinstance(value, torch.Tensor | np.ndarray | Mapping | list | tuple)


def _without_rows(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.new_empty((0, *value.shape[1:])) if value.ndim else torch.zeros_like(value)
    if isinstance(value, np.ndarray):
        return np.empty((0, *value.shape[1:]), value.dtype) if value.ndim else np.zeros_like(value)
    if isinstance(value, Mapping):
        fields = {name: _without_rows(inner) for name, inner in value.items()}
        return fields if type(value) is dict else type(value)(fields)  # type: ignore[call-arg]
    if isinstance(value, tuple):
        inner = [_without_rows(part) for part in value]
        return type(value)(*inner) if hasattr(value, "_fields") else tuple(inner)
    if isinstance(value, list):
        # A list has columns, as torch collates samples that are tuples, or the values of samples.
        return [_without_rows(part) for part in value] if any(map(_is_nested, value)) else []
    if isinstance(value, bool | int | float):
        return type(value)(0)
    if value is None:
        return None
    raise TypeError(
        f"expected a batch of tensors, arrays, lists and numbers, but found a {type(value).__name__}: "
        'uneven="pad" does not know its value without samples; give collate_fn a method empty(batch)'
    )


# --- as a text ---


def empty_to_text(batch: Any) -> str:
    """The batch as a text, for ``empty_from_text``. It is no pickle: its writer does not have to be trusted.

    Raises:
        TypeError: It holds something other than what ``empty_like`` makes, strings and bytes.
    """
    return json.dumps(_to_plain(batch))


def empty_from_text(text: str) -> Any:
    """The batch of a text; tensors are on a device of the same type.

    Raises:
        ValueError: It is no such text, or names a class that this process has not imported.
    """
    try:
        return _from_plain(json.loads(text))
    except (AttributeError, LookupError, RuntimeError, SyntaxError, TypeError, ValueError) as error:
        raise ValueError(
            f"expected an empty batch of another rank, but could not read it: {error}"
        ) from error


def _to_plain(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, torch.Tensor) and value.layout is torch.strided and not value.is_nested:
        name = str(value.dtype).removeprefix("torch.")
        values = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
        return {"tensor": [name, list(value.shape), value.device.type, _as_base64(values.tobytes())]}
    if isinstance(value, np.ndarray) and not (value.size and value.dtype.hasobject):
        dtype = repr(np.lib.format.dtype_to_descr(value.dtype))
        return {"array": [dtype, list(value.shape), _as_base64(value.tobytes())]}
    if isinstance(value, bytes):
        return {"bytes": _as_base64(value)}
    if isinstance(value, Mapping):
        kind = None if type(value) is dict else _name_of(type(value))
        return {"fields": [kind, [[_to_plain(name), _to_plain(inner)] for name, inner in value.items()]]}
    if isinstance(value, tuple):
        kind = _name_of(type(value)) if hasattr(value, "_fields") else None
        return {"tuple": [kind, list(map(_to_plain, value))]}
    if isinstance(value, list):
        return list(map(_to_plain, value))
    raise TypeError(
        f"expected an empty batch of tensors, arrays, mappings, lists, tuples, numbers and strings, "
        f'but found a {type(value).__name__}, which uneven="pad" cannot send to a rank that never had a '
        "batch: leave it out of what collate_fn's method empty(batch) returns"
    )


def _from_plain(plain: Any) -> Any:
    if isinstance(plain, list):
        return list(map(_from_plain, plain))
    if not isinstance(plain, dict):
        return plain
    ((kind, value),) = plain.items()
    if kind == "tensor":
        name, shape, device, raw = value
        dtype = getattr(torch, name)
        if not isinstance(dtype, torch.dtype):
            raise ValueError(f"{name!r} is no dtype of torch")
        if 0 in shape:
            return torch.empty(shape, dtype=dtype, device=device)
        return torch.frombuffer(bytearray(base64.b64decode(raw)), dtype=dtype).reshape(shape).to(device)
    if kind == "array":
        name, shape, raw = value
        dtype = np.lib.format.descr_to_dtype(ast.literal_eval(name))
        if 0 in shape:
            return np.empty(shape, dtype)
        return np.frombuffer(bytearray(base64.b64decode(raw)), dtype).reshape(shape)
    if kind == "bytes":
        return base64.b64decode(value)
    if kind == "fields":
        name, inner = value
        fields = {_from_plain(each): _from_plain(field) for each, field in inner}
        return fields if name is None else _class_of(name, Mapping)(fields)
    if kind == "tuple":
        name, inner = value
        parts = map(_from_plain, inner)
        return tuple(parts) if name is None else _class_of(name, tuple)(*parts)
    raise ValueError(f"{kind!r} is no kind of value")


def _as_base64(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


def _name_of(kind: type) -> list[str]:
    return [kind.__module__, kind.__qualname__]


def _class_of(name: list[str], base: type) -> Any:
    """The class of this name, if this process has imported it and it is a mapping or namedtuple."""
    module, qualname = name
    found: Any = sys.modules[module]
    for part in qualname.split("."):
        found = getattr(found, part)
    is_named = base is Mapping or hasattr(found, "_fields")
    if not (isinstance(found, type) and issubclass(found, base) and is_named):
        raise ValueError(f"{module}.{qualname} is no class of batches")
    return found
