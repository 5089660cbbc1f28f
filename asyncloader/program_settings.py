"""What a program has set at run time, for worker processes that start from a clean one.

Only settings that are plain values in known places: no code of the program runs, and no package is imported
for a setting that is at its default. Whatever else there is (attributes of other modules, handlers of
loggers, a default device) is for ``worker_init_fn``.
"""

from __future__ import annotations

import builtins
import logging
import sys
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from typing import Any, TypeAlias

from .tensors import when_torch_is_here

__all__ = ["ProgramSettings", "read_settings"]

# Module, attribute, and the value that it has after the module's import.
_ATTRIBUTES = (
    ("PIL.ImageFile", "LOAD_TRUNCATED_IMAGES", False),
    ("PIL.Image", "MAX_IMAGE_PIXELS", 1024 * 1024 * 1024 // 4 // 3),
)

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
    """

    attributes: Sequence[tuple[str, str, Any, bool]]
    torch: tuple[str, bool, bool, bool, bool] | None
    levels: Mapping[str, int]
    disabled_level: int
    filters: Sequence[_Filter]

    def apply(self) -> None:
        """Take them over in this process."""
        for module, name, value, is_default in self.attributes:
            if module in sys.modules or not is_default:
                with suppress(ImportError):  # on a node of a cluster, say; who needs it is told
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
        if deterministic:
            torch.use_deterministic_algorithms(True, warn_only=warn_only)
        torch.backends.cudnn.deterministic = cudnn_deterministic
        torch.backends.cudnn.benchmark = cudnn_benchmark


def read_settings() -> ProgramSettings:
    """Those of this process, as they are now."""
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
    """The type of what stands in a filter for a category that need not be imported for it."""

    named: tuple[str, str]

    def __subclasscheck__(cls, kind: type) -> bool:
        return any((each.__module__, each.__qualname__) == cls.named for each in kind.__mro__)


def _with_categories(entry: _Filter) -> tuple[Any, ...]:
    action, message, names, module, line = entry
    first, *rest = (_category(*named) for named in names)
    return action, message, (first, *rest) if rest else first, module, line


def _category(module: str, name: str) -> type:
    return getattr(builtins, name) if module == "builtins" else _Named(name, (), {"named": (module, name)})
