"""Files of a folder as material: those of one base name are a sample, as WebDataset has it."""

from __future__ import annotations

import os
import stat
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby, pairwise
from typing import Any, NamedTuple

from ..errors import StoreError
from ..plan.order import permutation
from .material import Version

__all__ = ["FileMaterial", "find_files"]


class File(NamedTuple):
    """A file of a sample; names are below the folder."""

    name: str
    key: str
    field: str
    size_bytes: int
    modified_ns: int


@dataclass(frozen=True)
class FileMaterial:
    """The samples of a folder.

    Args:
        folder: Its path.
        groups: The files of each sample, in the order of the samples.
        classes: Numbers of the folders that are classes, by name; None if they are none.
    """

    folder: str
    groups: Sequence[tuple[File, ...]]
    classes: Mapping[str, int] | None = None

    @property
    def versions(self) -> Sequence[Version]:
        return [
            Version(file.name, file.size_bytes, str(file.modified_ns))
            for group in self.groups
            for file in group
        ]

    @cached_property
    def sizes(self) -> list[int]:
        """Of each sample, in bytes."""
        return [sum(file.size_bytes for file in group) for group in self.groups]

    @property
    def size_bytes(self) -> int:
        return sum(self.sizes)

    def part(self, first: int, stop: int) -> FileMaterial:
        return replace(self, groups=self.groups[first:stop])

    def shuffled(self, seed: int) -> FileMaterial:
        """The same samples in a drawn order."""
        return replace(self, groups=[self.groups[number] for number in permutation(len(self.groups), seed)])

    def in_vain(self, first: int) -> int:
        return 0

    def prove(self, read: Iterable[tuple[int, int]]) -> None:
        pass  # each file was held against its version when it was read, and nobody promises more

    def describe(self) -> Mapping[str, Any]:
        return {"made_by": "pack", "labels": self.classes is not None}

    def samples(self) -> Generator[tuple[dict[str, Any], object], None, None]:
        for group in self.groups:
            sample: dict[str, Any] = {"__key__": group[0].key}
            for file in group:
                sample[file.field] = _content(os.path.join(self.folder, file.name), file)
            if self.classes is not None:
                name = group[0].key.partition("/")[0]
                sample |= {"cls": str(self.classes[name]).encode(), "label.txt": name.encode()}
            yield sample, os.path.join(self.folder, group[0].name)


def find_files(folder: str, labels: bool) -> tuple[FileMaterial, int]:
    """The samples of a folder, and how many files are left out since they are hidden.

    Args:
        folder: Its path.
        labels: Whether the folders in it are classes.

    Raises:
        ValueError: It is none, or empty, or there is something in it that would be lost: a file without an
            extension, two files for one field, a link to a folder, a pipe.
    """
    if not os.path.isdir(folder):
        raise ValueError(f"pack takes a folder of files, but there is no folder {folder!r}")
    files, hidden = [], 0
    for name, entry in _walk(folder, ""):
        if any(part.startswith(".") for part in name.split("/")):
            hidden += 1
            continue
        files.append(_file(name, entry))
    if not files:
        but = f", but for {hidden} that are hidden" if hidden else ""
        raise ValueError(f"there is no file below {folder!r}{but}")
    # By key first: "a.b" comes between "a" and "a/b", and would part the files of a sample.
    files.sort(key=lambda file: (file.key, file.field, file.name))
    for one, other in pairwise(files):
        if (one.key, one.field) == (other.key, other.field):
            raise ValueError(
                f"{one.name!r} and {other.name!r} are the same field {one.field!r} of sample {one.key!r}: "
                "extensions are in lower case; rename one"
            )
    groups = [tuple(group) for _, group in groupby(files, key=lambda file: file.key)]
    return FileMaterial(folder, groups, _classes(files) if labels else None), hidden


def _walk(folder: str, below: str) -> Iterator[tuple[str, os.stat_result]]:
    """Files by name below the folder, with what they are."""
    try:
        entries = sorted(os.scandir(where := os.path.join(folder, below)), key=lambda entry: entry.name)
    except OSError as error:
        raise StoreError(f"cannot look into the folder: {error.strerror}", shard=where) from error
    for entry in entries:
        name = f"{below}{entry.name}"
        try:
            found = entry.stat()
        except OSError as error:  # a link to nowhere
            raise ValueError(f"{name!r} cannot be read ({error.strerror}): remove it") from None
        if not stat.S_ISDIR(found.st_mode):
            yield name, found
        elif entry.is_symlink():
            raise ValueError(
                f"{name!r} is a link to a folder, which may lead in a circle: pack what it leads to, or "
                "remove it"
            )
        else:
            yield from _walk(folder, f"{name}/")


def _file(name: str, found: os.stat_result) -> File:
    if not stat.S_ISREG(found.st_mode):
        raise ValueError(f"{name!r} is no regular file: remove it")
    folder, slash, base = name.rpartition("/")
    base, _, field = base.partition(".")
    if not field:
        raise ValueError(
            f"{name!r} has no extension, which is what a field is called by: rename it, or remove it"
        )
    return File(name, folder + slash + base, field.lower(), found.st_size, found.st_mtime_ns)


def _classes(files: Sequence[File]) -> dict[str, int]:
    for file in files:
        if "/" not in file.key:
            raise ValueError(f"labels are the names of subfolders, but {file.name!r} is in none")
        if file.field in ("cls", "label.txt"):
            raise ValueError(
                f"labels would be the fields cls and label.txt, and there is {file.name!r} already: leave "
                "labels out, or rename it"
            )
    return {name: number for number, name in enumerate(sorted({f.key.partition("/")[0] for f in files}))}


def _content(path: str, expected: File) -> bytes:
    try:
        with open(path, "rb") as file:
            content = file.read()
            found = os.fstat(file.fileno())
    except OSError as error:
        raise StoreError(f"cannot read the file: {error.strerror}", shard=path) from error
    if (len(content), found.st_mtime_ns) != (expected.size_bytes, expected.modified_ns):
        raise StoreError("the file was changed while it was being packed; begin anew", shard=path)
    return content
