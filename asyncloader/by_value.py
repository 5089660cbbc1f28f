"""Classes that travel to a worker by value, by cloudpickle, and come back as what they were.

Such a class carries a number, and on the way home only that travels. By value it would come back as a
stranger; or, where cloudpickle knows it again, overwrite what the consumer's class has become since.
"""

from __future__ import annotations

import io
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dis import get_instructions
from functools import partial
from pickle import PickleBuffer
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any
from weakref import WeakKeyDictionary, WeakValueDictionary

import cloudpickle

__all__ = ["Homeward", "Outward", "any_class_came", "dumps_outward", "dumps_with_modules", "find_unpicklable"]

# From here on pages that workers share are worth more than having all of it in one place.
_LARGE_BYTES = 64 << 10

# From a function to what does not pickle: farther away nobody would know it by its path, and parts may go in
# circles.
_MOST_STEPS = 8

# The classes that travel by value: here under the number that they carry, in every process that knows them.
_numbers: WeakKeyDictionary[type, str] = WeakKeyDictionary()
_classes: WeakValueDictionary[str, type] = WeakValueDictionary()


class Outward(cloudpickle.Pickler):  # type: ignore[misc]  # untyped
    """cloudpickle, towards a worker."""

    def reducer_override(self, obj: Any) -> Any:
        if type(obj) is io.TextIOWrapper and obj is not sys.stdout and obj is not sys.stderr:
            # cloudpickle would send all of its text, and the worker would not read the file.
            raise TypeError(
                f"cannot pickle an open file, {getattr(obj, 'name', '')!r}: open it by its path where it is "
                "first needed"
            )
        reduced = super().reducer_override(obj)
        if isinstance(obj, type) and isinstance(reduced, tuple) and len(reduced) == 6:
            # cloudpickle's way of sending a class by value: how to make it, and how to fill it.
            make, arguments, state, _, _, fill = reduced
            number = _numbers.setdefault(obj, uuid.uuid4().hex)
            _classes[number] = obj
            return make, arguments, (number, fill, state), None, None, _settle
        return reduced


class _Noting(Outward):
    """Keeps large buffers apart, and notes the modules that it names, and those that functions sent by value
    import when they are called."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, 5, self._keep_in)
        self.modules: set[str] = set()
        self.buffers: list[PickleBuffer] = []

    def _keep_in(self, buffer: PickleBuffer) -> bool:
        """Whether a buffer goes with the rest; large ones are kept apart."""
        if buffer.raw().nbytes < _LARGE_BYTES:
            return True
        self.buffers.append(buffer)
        return False

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, ModuleType):
            self.modules.add(obj.__name__)
        elif isinstance(obj, CodeType):
            steps = get_instructions(obj)
            self.modules.update(step.argval for step in steps if step.opname == "IMPORT_NAME")
        reduced = super().reducer_override(obj)
        # What goes by value, such as a lambda, brings nothing of the module that it was defined in.
        if reduced is NotImplemented and isinstance(name := getattr(obj, "__module__", None), str):
            self.modules.add(name)
        return reduced


class Homeward(cloudpickle.Pickler):  # type: ignore[misc]  # untyped
    """cloudpickle, back from a worker."""

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, type) and obj in _numbers:
            return _class_of, (_numbers[obj],)
        return super().reducer_override(obj)


def any_class_came() -> bool:
    """Whether this process knows a class that plain pickle may not send as what it is."""
    return bool(_numbers)


def find_unpicklable(held: Any) -> str:
    """What in ``held`` does not pickle, such as ``"client.lock, a _thread.lock"``; empty if no part of it."""
    path = ""
    for _ in range(_MOST_STEPS):
        for step, part in _parts_of(held):
            if not _pickles(part):
                path, held = path + step, part
                break
        else:
            break
    kind = type(held)
    return path and f"{path.removeprefix('.')}, a {kind.__module__}.{kind.__qualname__}"


def _parts_of(held: Any) -> Iterator[tuple[str, Any]]:
    """What something is pickled with, and how one gets there: a variable, an attribute, an item."""
    if isinstance(held, partial):
        yield from _parts_of(held.func)
        yield from held.keywords.items()
        yield from ((f"args[{index}]", value) for index, value in enumerate(held.args))
    elif isinstance(held, MethodType):
        yield "self", held.__self__
    elif isinstance(held, FunctionType):
        yield from _variables_of(held)
    elif isinstance(held, Mapping):
        yield from ((f"[{key!r}]", value) for key, value in held.items())
    elif isinstance(held, list | tuple | set):
        yield from ((f"[{index}]", value) for index, value in enumerate(held))
    else:
        yield from ((f".{name}", value) for name, value in getattr(held, "__dict__", {}).items())


def _variables_of(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """Those that a function captures, takes by default, or refers to in its module."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):  # it has no value yet
            yield name, cell.cell_contents
    yield from (function.__kwdefaults__ or {}).items()
    yield from ((f"a default of {function.__name__}", value) for value in function.__defaults__ or ())
    codes = [function.__code__]
    while codes:
        code = codes.pop()
        codes += [each for each in code.co_consts if isinstance(each, CodeType)]
        for step in get_instructions(code):
            if step.opname == "LOAD_GLOBAL" and step.argval in function.__globals__:
                yield step.argval, function.__globals__[step.argval]


def _pickles(held: Any) -> bool:
    try:
        dumps_outward(held)
    except Exception:
        return False
    return True


def dumps_outward(held: Any) -> bytes:
    """Pickle for a worker."""
    out = io.BytesIO()
    Outward(out, 5).dump(held)
    return out.getvalue()


def dumps_with_modules(held: Any) -> tuple[bytes, list[PickleBuffer], set[str]]:
    """Pickle for several workers.

    Returns:
        The pickle, those large buffers that are not in it, which still belong to ``held``, and the names of
        the modules that the workers will import, as far as can be seen.
    """
    out = io.BytesIO()
    pickler = _Noting(out)
    pickler.dump(held)
    return out.getvalue(), pickler.buffers, pickler.modules


def _settle(arrived: type, parts: tuple[str, Callable[[Any, Any], Any], Any]) -> None:
    """Fill a class that came by value, once in a process's life."""
    number, fill, state = parts
    if arrived not in _numbers:
        _numbers[arrived] = number
        _classes[number] = arrived
        fill(arrived, state)


def _class_of(number: str) -> type:
    return _classes[number]
