"""Classes that travel to a worker by value, by cloudpickle, and come back as what they were.

Such a class has a number, and only that is sent back. By value it would come back as another class; or, where
cloudpickle recognises it, overwrite what the consumer has changed in its class since.
"""

from __future__ import annotations

import builtins
import io
import logging
import os
import sys
import uuid
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from dis import get_instructions
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from pickle import PickleBuffer
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary, WeakValueDictionary

import cloudpickle

from ..blocks.memory import when_torch_is_here
from ..flow.process import import_path

# From this size, pages that workers share are worth more than having all of it in one place.
_LARGE_BYTES = 64 << 10

# From a function to what does not pickle: a longer path would not be recognised, and parts may form a cycle.
_MOST_STEPS = 8

# The classes that are sent by value, by their number, in every process that knows them.
_numbers: WeakKeyDictionary[type, str] = WeakKeyDictionary()
_classes: WeakValueDictionary[str, type] = WeakValueDictionary()


class Outward(cloudpickle.Pickler):  # type: ignore[misc]  # untyped
    """cloudpickle, towards a worker."""

    def reducer_override(self, obj: Any) -> Any:
        if type(obj) is io.TextIOWrapper and obj is not sys.stdout and obj is not sys.stderr:
            # cloudpickle would send all of its text instead of reading the file in the worker.
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


class _NotingPickler(Outward):
    """Keeps large buffers apart, and notes the modules that it names, and those that functions sent by value
    import when they are called."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, 5, self._keep_in)
        self.modules: set[str] = set()
        self.buffers: list[PickleBuffer] = []

    def _keep_in(self, buffer: PickleBuffer) -> bool:
        """Whether a buffer stays in the pickle; large ones are kept apart."""
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
        # What is sent by value, such as a lambda, needs nothing of the module that it was defined in.
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
    """The variables that a function captures, takes by default, or refers to in its module."""
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
        dumps_with_modules(held)
    except Exception:
        return False
    return True


def dumps_with_modules(held: Any) -> tuple[bytes, list[PickleBuffer], set[str]]:
    """Pickle for workers.

    Returns:
        The pickle, those large buffers that are not in it, which still belong to ``held``, and the names of
        the modules that the workers will import, as far as can be seen.
    """
    out = io.BytesIO()
    pickler = _NotingPickler(out)
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


# What a program has set at run time, for worker processes that start from a clean one.
#
# Only settings that are plain values in known places, or in modules of the program: no code of the program
# runs, and nothing is imported for a setting that is at its default. All others (objects in modules, handlers
# of loggers, a default device) are for ``worker_init_fn``.

# Module, attribute, and the value that it has after the module's import.
_ATTRIBUTES = (
    ("PIL.ImageFile", "LOAD_TRUNCATED_IMAGES", False),
    ("PIL.Image", "MAX_IMAGE_PIXELS", 1024 * 1024 * 1024 // 4 // 3),
)

# What may be such a value in a module of the program, under a name for constants, which no function of the
# module sets beside others; a text of this length at most.
_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_MOST_CHARACTERS = 4096

_Filter: TypeAlias = tuple[str, Any, Sequence[tuple[str, str]], Any, int]
"""As in ``warnings.filters``, with the categories by module and name."""


@dataclass(frozen=True)
class ProgramSettings:
    """The settings of a process.

    Attributes:
        attributes: Module, name and value of those of ``_ATTRIBUTES`` that the process has imported, and
            whether it is the default.
        torch: torch's default dtype by name, and its flags; None without torch.
        levels: Of the loggers that have one, by name; the root's is ``""``.
        disabled_level: Of ``logging.disable``.
        filters: The filters of warnings.
        values: The constants in modules of the program, by module and name.
    """

    attributes: Sequence[tuple[str, str, Any, bool]]
    torch: tuple[str, bool, bool, bool, bool] | None
    levels: Mapping[str, int]
    disabled_level: int
    filters: Sequence[_Filter]
    values: Mapping[str, Mapping[str, Any]]

    def apply(self) -> None:
        """Set them in this process, which has imported what it needs."""
        for name, values in self.values.items():
            if name in sys.modules:
                vars(sys.modules[name]).update(values)
        for module, name, value, is_default in self.attributes:
            if module in sys.modules or not is_default:
                with suppress(ImportError):  # on a node of a cluster, say; code that needs it raises
                    setattr(import_module(module), name, value)
        for logger, level in self.levels.items():
            logging.getLogger(logger).setLevel(level)
        logging.disable(self.disabled_level)
        warnings.resetwarnings()
        warnings.filters.extend(map(_with_categories, self.filters))  # type: ignore[attr-defined]  # a list
        if self.torch is not None:
            when_torch_is_here(self._apply_to_torch)

    def _apply_to_torch(self) -> None:
        import torch

        assert self.torch is not None
        dtype, deterministic, warn_only, cudnn_deterministic, cudnn_benchmark = self.torch
        torch.set_default_dtype(getattr(torch, dtype))
        if deterministic or torch.are_deterministic_algorithms_enabled():
            torch.use_deterministic_algorithms(deterministic, warn_only=warn_only)
        torch.backends.cudnn.deterministic = cudnn_deterministic
        torch.backends.cudnn.benchmark = cudnn_benchmark


def imported_modules() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """What this process has imported beside the standard library and this package: name, path, attributes."""
    known = {*sys.stdlib_module_names, __name__.partition(".")[0], "__main__", "__mp_main__"}
    for name, module in list(sys.modules.items()):
        # Not isinstance(): cffi's libraries pass for modules, and are none.
        if name.partition(".")[0] not in known and issubclass(type(module), ModuleType):
            held = object.__getattribute__(module, "__dict__")  # some import more when they are asked
            path = held.get("__file__") or next(iter(held.get("__path__") or ()), "")
            if path:
                yield name, str(path), held


def programs_modules() -> Iterator[tuple[str, dict[str, Any]]]:
    """The modules among them that are the program's own: not of an installed package."""
    installed = [path for path in import_path() if _has_packages(path)]
    prefixes = tuple(path + os.sep for path in (*installed, os.path.dirname(os.__file__)))
    return ((name, held) for name, path, held in imported_modules() if not path.startswith(prefixes))


@cache
def _has_packages(folder: str) -> bool:
    return any(Path(folder).glob("*.dist-info"))


def _is_constant(name: str, value: object) -> bool:
    is_short = not isinstance(value, str | bytes) or len(value) <= _MOST_CHARACTERS
    return type(value) in _PLAIN and is_short and name.isupper() and not name.startswith("_")


def read_settings(*, is_local: bool = True) -> ProgramSettings:
    """Those of this process, as they are now.

    Args:
        is_local: For workers on this machine: on others, what modules have found out at import may differ.
    """
    attributes = []
    for module, name, default in _ATTRIBUTES:
        if module in sys.modules:
            value = getattr(sys.modules[module], name, default)
            attributes.append((module, name, value, value == default))
    loggers = [each for each in logging.root.manager.loggerDict.values() if isinstance(each, logging.Logger)]
    levels = {logger.name: logger.level for logger in loggers if logger.level}
    return ProgramSettings(
        attributes=attributes,
        torch=_read_torch() if "torch" in sys.modules else None,
        levels={"": logging.root.level, **levels},
        disabled_level=logging.root.manager.disable,
        filters=[
            (action, message, _names_of(category), module, line)
            for action, message, category, module, line in warnings.filters
        ],
        values={
            name: {key: value for key, value in list(held.items()) if _is_constant(key, value)}
            for name, held in (programs_modules() if is_local else ())
        },
    )


def _read_torch() -> tuple[str, bool, bool, bool, bool]:
    import torch

    return (
        str(torch.get_default_dtype()).removeprefix("torch."),
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.backends.cudnn.deterministic,
        torch.backends.cudnn.benchmark,
    )


def _names_of(category: Any) -> list[tuple[str, str]]:
    several = category if isinstance(category, tuple) else (category,)
    return [(each.__module__, each.__qualname__) for each in several]


class _Named(type):
    """The type of a stand-in for a filter's category, which saves importing the category."""

    named: tuple[str, str]

    def __subclasscheck__(cls, kind: type) -> bool:
        return any((each.__module__, each.__qualname__) == cls.named for each in kind.__mro__)


def _with_categories(entry: _Filter) -> tuple[Any, ...]:
    action, message, names, module, line = entry
    first, *rest = (_category(*named) for named in names)
    return action, message, (first, *rest) if rest else first, module, line


def _category(module: str, name: str) -> type:
    return getattr(builtins, name) if module == "builtins" else _Named(name, (), {"named": (module, name)})
