"""A draft has its name when it is whole, and leaves nothing where it does not come to that."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from asyncloader.atomic_file import AtomicFile, write_whole


def test_a_draft_takes_its_name_when_it_is_published(tmp_path: Path) -> None:
    path = tmp_path / "shard.tar"
    path.write_bytes(b"old")
    draft = AtomicFile(str(path))
    draft.file.write(b"new")
    assert path.read_bytes() == b"old"
    hidden = [name for name in os.listdir(tmp_path) if name != path.name]
    assert len(hidden) == 1 and hidden[0].startswith(".shard.tar.") and hidden[0].endswith(".tmp")
    draft.publish()
    assert path.read_bytes() == b"new" and os.listdir(tmp_path) == ["shard.tar"]
    draft.discard()
    assert path.read_bytes() == b"new", "what was published stays"


def test_a_draft_that_is_discarded_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "shard.tar"
    path.write_bytes(b"old")
    draft = AtomicFile(str(path))
    draft.file.write(b"new")
    draft.discard()
    draft.discard()
    assert path.read_bytes() == b"old" and os.listdir(tmp_path) == ["shard.tar"]


def test_a_draft_that_cannot_be_published_can_be_discarded(tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    draft = AtomicFile(str(tmp_path / "taken"))
    with pytest.raises(IsADirectoryError):
        draft.publish()
    draft.discard()
    assert os.listdir(tmp_path) == ["taken"]


def test_a_file_is_put_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x"
    write_whole(str(path), b"before")
    write_whole(str(path), b"after", str(tmp_path))
    assert path.read_bytes() == b"after"

    def fail(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("asyncloader.atomic_file.os.fsync", fail)
    with pytest.raises(OSError, match=rf"No space left on device: '{tmp_path}/\.x\."):
        write_whole(str(path), b"never")
    assert path.read_bytes() == b"after" and os.listdir(tmp_path) == ["x"]
