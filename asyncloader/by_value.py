"""Classes that travel to a worker by value, by cloudpickle, and come back as what they were.

Such a class carries a number, and on the way home only that travels. By value it would come back as a
stranger; or, where cloudpickle knows it again, overwrite what the consumer's class has become since.
"""

from __future__ import annotations

import io
import uuid
from collections.abc import Callable
from dis import get_instructions
from pickle import PickleBuffer
from types import CodeType, ModuleType
from typing import Any
from weakref import WeakKeyDictionary, WeakValueDictionary

import cloudpickle

__all__ = ["Homeward", "Outward", "any_class_came", "dumps_outward", "dumps_with_modules"]

# From here on pages that workers share are worth more than having all of it in one place.
_LARGE_BYTES = 64 << 10

# The classes that travel by value: here under the number that they carry, in every process that knows them.
_numbers: WeakKeyDictionary[type, str] = WeakKeyDictionary()
_classes: WeakValueDictionary[str, type] = WeakValueDictionary()


class Outward(cloudpickle.Pickler):  # type: ignore[misc]  # untyped
    """cloudpickle, towards a worker."""

    def reducer_override(self, obj: Any) -> Any:
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
