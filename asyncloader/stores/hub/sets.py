"""Which configurations and splits a data set of the hub has in Parquet, by the names of its files. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

__all__ = ["CONVERTED", "Sets", "arrange"]

#: The branch in which the hub keeps its own conversion of a data set: ``CONFIG/SPLIT/0000.parquet``.
CONVERTED = "refs/convert/parquet"

_SUFFIX = ".parquet"
_DEFAULT, _TRAIN = "default", "train"

# What says which of several files of a split one is: ``-00000-of-00003``, perhaps with a fingerprint behind.
_NUMBERED = re.compile(r"[-_.](?:part[-_.]?)?\d+(?:-of-\d+)?(?:-[0-9a-f]{6,})?$")
# A name that says nothing else.
_ONLY_NUMBER = re.compile(
    r"(?:part|shard|file|chunk)?(?:[-_.]?\d+)+(?:-of-\d+)?(?:-[0-9a-f-]{6,})?(?:\.\w+)*"
)

# As many as a person reads.
_MOST_SHOWN = 20


@dataclass(frozen=True)
class Sets:
    """Files by configuration and split.

    Attributes:
        files: Paths in the data set, in their order.
    """

    files: Mapping[str, Mapping[str, tuple[str, ...]]] = field(default_factory=dict)

    def find(self, config: str | None, split: str) -> tuple[str, ...]:
        """The files of a split; none if it is not there.

        Args:
            config: None for the only configuration there is, or the one named ``default``.
            split: Its name.
        """
        return self.files.get(self.meant(config) or "", {}).get(split, ())

    def meant(self, config: str | None) -> str | None:
        """The configuration of this name, or that is meant by none; None if there is no telling."""
        if config is not None:
            return config
        return (
            next(iter(self.files)) if len(self.files) == 1 else _DEFAULT if _DEFAULT in self.files else None
        )

    def describe(self) -> str:
        """What there is, for messages: ``'en': 'train' (4 files), 'test' (1 file)``."""
        shown = [
            f"{config!r}: " + ", ".join(f"{split!r} ({_counted(paths)})" for split, paths in splits.items())
            for config, splits in self.files.items()
        ]
        more = len(shown) - _MOST_SHOWN
        return "; ".join(shown[:_MOST_SHOWN]) + (f"; and {more} more" if more > 0 else "")


def arrange(paths: Iterable[str], revision: str) -> Sets:
    """What files mean by their names.

    In the hub's own conversion the folders are configuration and split. In other revisions a file is named
    after its split (``train-00000-of-00003.parquet``, ``train.parquet``), or the folder that it is in is, if
    its name is a number; the folders above, but for ``data``, are its configuration, or there is none:
    ``default``.

    Args:
        paths: Of all files.
        revision: That they are of.
    """
    found: dict[str, dict[str, list[str]]] = {}
    for path in sorted(path for path in paths if path.endswith(_SUFFIX)):
        place = _converted(path) if revision == CONVERTED else _named(path)
        if place is not None:
            config, split = place
            found.setdefault(config, {}).setdefault(split, []).append(path)
    return Sets(
        {config: {split: tuple(files) for split, files in splits.items()} for config, splits in found.items()}
    )


def _converted(path: str) -> tuple[str, str] | None:
    *folders, _ = path.split("/")
    return ("/".join(folders[:-1]), folders[-1]) if len(folders) > 1 else None


def _named(path: str) -> tuple[str, str]:
    *folders, name = path.split("/")
    stem = name.removesuffix(_SUFFIX)
    if _ONLY_NUMBER.fullmatch(stem):
        split = folders.pop() if folders and folders[-1] != "data" else _TRAIN
    else:
        split = _NUMBERED.sub("", stem)
    return "/".join(folder for folder in folders if folder != "data") or _DEFAULT, split


def _counted(paths: tuple[str, ...]) -> str:
    return f"{len(paths)} file{'s' * (len(paths) != 1)}"
