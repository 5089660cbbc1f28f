"""Compressed shards of MDS that are damaged, or that their index lies of: through whole loaders."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mds_files import COLUMNS, mds, samples
from packed_files import COMPRESS, zeros_behind

import asyncloader as al
from asyncloader import testing

from .packed_folders import BAD, EACH, SHARDS, Packed

pytestmark = pytest.mark.usefixtures("fork_server")

families = pytest.mark.parametrize("family", COMPRESS)


@pytest.fixture
def packed(tmp_path: Path) -> Callable[..., Packed]:
    def packed(family: str, **options: Any) -> Packed:
        return Packed(tmp_path, family, **options)

    return packed


def numbers(loader: al.DataLoader[Any]) -> list[int]:
    return [number for batch in loader for number in batch["n"].tolist()]


def outcome(
    root: str | Path, workers: int = 0, **options: Any
) -> tuple[list[int], al.FormatError | al.StoreError]:
    """The samples of a pass in one lane, and the error that it ends with."""
    found: list[int] = []
    with testing.check_leaks():
        with (
            al.DataLoader(
                al.from_mds(root), 5, num_workers=workers, lanes=1, collate_fn=al.Pad({"ids": 0}), **options
            ) as loader,
            pytest.raises((al.FormatError, al.StoreError)) as caught,
        ):
            for batch in loader:
                found += batch["n"].tolist()
        error = caught.value
        error.__traceback__ = None
        del caught
    return found, error


WHOLE = [row["n"] for row in samples(EACH)]


def is_right(packed: Packed, found: list[int], error: Exception) -> None:
    """What came was right and without a gap, and the error names the shard."""
    before = WHOLE * BAD
    assert found == (before + WHOLE)[: len(found)] and len(found) >= len(before)
    assert error.shard == str(packed.path())  # type: ignore[attr-defined]


@families
@pytest.mark.parametrize("hashes", [((), ()), (("sha1",), ("sha1",))], ids=["", "digests"])
def test_shards_that_are_whole_are_read(
    packed: Callable[..., Packed], family: str, hashes: tuple[tuple[str, ...], tuple[str, ...]]
) -> None:
    folder = packed(family, hashes=hashes).folder
    with al.DataLoader(al.from_mds(folder, columns=["n"]), 7) as loader:
        assert numbers(loader) == WHOLE * SHARDS


def damaged(content: bytes) -> dict[str, bytes]:
    middle = len(content) // 2
    flipped = bytearray(content)
    for at in range(middle, middle + 8):
        flipped[at] ^= 0xFF
    return {
        "empty": b"",
        "cut at its beginning": content[:3],
        "cut in its middle": content[:middle],
        "cut at its end": content[:-1],
        "flipped": bytes(flipped),
        "garbage": content + b"garbage",
        "twice": content * 2,
        "a page": b"<html>not found</html>",
    }


@families
@pytest.mark.parametrize("damage", damaged(bytes(20)))
def test_what_is_damaged_raises_whether_the_index_knows_of_it_or_not(
    packed: Callable[..., Packed], family: str, damage: str
) -> None:
    # Of those whose bits nobody holds against anything, the digest of the index tells.
    folder = packed(family, hashes=((), ("sha256",)))
    content = damaged(folder.path().read_bytes())[damage]
    folder.replace(content, is_told=False)
    found, error = outcome(folder.folder)
    if damage != "flipped":
        assert isinstance(error, al.StoreError) and "index.json promises" in str(error)
    is_right(folder, found, error)
    folder.replace(content)
    found, error = outcome(folder.folder)
    assert isinstance(error, al.FormatError)
    is_right(folder, found, error)


@pytest.mark.parametrize(
    ("family", "damage"),
    [("br", "cut in its middle"), ("zstd", "flipped"), ("snappy", "garbage"), ("gz", "cut at its end")],
)
def test_damage_raises_out_of_workers_too(packed: Callable[..., Packed], family: str, damage: str) -> None:
    folder = packed(family, hashes=((), ("sha256",)))
    folder.replace(damaged(folder.path().read_bytes())[damage])
    found, error = outcome(folder.folder, 2)
    assert isinstance(error, al.FormatError)
    is_right(folder, found, error)


@families
@pytest.mark.parametrize("workers", [0, 2])
def test_a_damaged_shard_is_skipped_and_counted_and_no_other_sample_is_lost(
    packed: Callable[..., Packed], tmp_path: Path, family: str, workers: int
) -> None:
    folder = packed(family)
    folder.replace(folder.path().read_bytes()[:-9])
    letters = tmp_path / "letters.jsonl"
    with al.DataLoader(
        al.from_mds(folder.folder, columns=["n"]),
        5,
        lanes=1,
        num_workers=workers,
        on_error=al.SkipErrors(max=1, dead_letters=letters),
    ) as loader:
        found = numbers(loader)
        assert loader.statistics.skipped == 1
    (letter,) = map(json.loads, letters.read_text().splitlines())
    came = len(found) - EACH * (SHARDS - 1)
    assert 0 <= came <= EACH and letter["sample"] == came
    assert found == WHOLE * BAD + WHOLE[:came] + WHOLE * (SHARDS - 1 - BAD)
    assert (letter["what"], letter["shard"]) == ("shard", str(folder.path()))


@pytest.mark.parametrize("family", ["br", "zstd"])
def test_the_loader_goes_on_from_its_state_when_the_shard_is_restored(
    packed: Callable[..., Packed], family: str
) -> None:
    folder = packed(family)
    content = folder.path().read_bytes()
    recipe = al.from_mds(folder.folder, columns=["n"])
    folder.path().write_bytes(content[:-1] + bytes([content[-1] ^ 0xFF]))
    found: list[int] = []
    with al.DataLoader(recipe, 6, lanes=1) as loader:
        try:
            for batch in loader:
                found += batch["n"].tolist()
        except al.FormatError:
            folder.path().write_bytes(content)
            loader.load_state_dict(loader.state_dict())
            for batch in loader:
                found += batch["n"].tolist()
    assert found == WHOLE * SHARDS


LIES: dict[str, tuple[Callable[[Any], None], str]] = {
    "more samples": (lambda entry: entry.update(samples=EACH + 1), "promises 21 samples"),
    "fewer samples": (lambda entry: entry.update(samples=EACH - 1), "promises 19 samples"),
    "another length": (lambda entry: entry["zip_data"].update(bytes=7), "promises 7 bytes"),
    "less when it is decompressed": (
        lambda entry: entry["raw_data"].update(bytes=entry["raw_data"]["bytes"] - 1),
        "bytes of this shard when it is decompressed, found more",
    ),
    "more when it is decompressed": (
        lambda entry: entry["raw_data"].update(bytes=1 << 50),
        "promises 1125899906842624 bytes of this shard when it is decompressed",
    ),
    "another digest": (lambda entry: entry["zip_data"].update(hashes={"sha1": "00" * 20}), "sha1"),
    "another digest when it is decompressed": (
        lambda entry: entry["raw_data"].update(hashes={"sha1": "00" * 20}),
        "promises the sha1 0000000000000000000000000000000000000000 of this shard when it is decompressed",
    ),
}


@families
@pytest.mark.parametrize("lie", LIES)
def test_an_index_that_lies_of_a_compressed_shard_is_found_out(
    packed: Callable[..., Packed], family: str, lie: str
) -> None:
    folder = packed(family)
    change, message = LIES[lie]
    change(folder.entries[BAD])
    folder.save()
    found, error = outcome(folder.folder, 2 if lie == "another digest when it is decompressed" else 0)
    assert message in str(error)
    is_right(folder, found, error)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda entry: entry["raw_data"].update(bytes=-1), "`int` >= 0"),
        (lambda entry: entry["raw_data"].update(bytes=1 << 63), "`int` <= "),
        (lambda entry: entry["zip_data"].update(bytes=1 << 63), "`int` <= "),
        (lambda entry: entry["zip_data"].update(bytes=1 << 70), "index"),
        (lambda entry: entry.update(samples=1 << 63), "`int` <= "),
        (lambda entry: entry["raw_data"].update(hashes={"md5": "zz"}), "hexadecimal"),
        (lambda entry: entry["raw_data"].update(hashes={"md5": ""}), "hexadecimal"),
        (lambda entry: entry["raw_data"].update(hashes={"md5": "ab" * 65}), "hexadecimal"),
        (lambda entry: entry["zip_data"].update(basename="../x"), "below its own folder"),
        (lambda entry: entry.update(compression="lz4"), "compression: expected one of"),
    ],
)
def test_an_index_of_compressed_shards_that_is_not_sound_is_refused(
    packed: Callable[..., Packed], change: Callable[[Any], None], what: str
) -> None:
    folder = packed("zstd")
    change(folder.entries[BAD])
    folder.save()
    with pytest.raises(al.FormatError, match=what):
        al.from_mds(folder.folder)


def test_a_cut_download_of_a_compressed_shard_is_found_out_by_a_server_too(
    packed: Callable[..., Packed],
) -> None:
    folder = packed("br")
    folder.replace(folder.path().read_bytes()[:-5])
    with testing.serve(folder.folder) as server:
        found, error = outcome(server.url)
    assert isinstance(error, al.FormatError) and "truncated" in str(error)
    assert error.shard == server.url_of(folder.path().name)
    assert found == (WHOLE * SHARDS)[: len(found)] and len(found) >= len(WHOLE * BAD)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_bomb_is_refused(packed: Callable[..., Packed], workers: int) -> None:
    folder = packed("zstd")
    size = 1 << 30
    head = mds(COLUMNS, [bytes(16)])
    begin = struct.unpack_from("<I", head, 4)[0]
    bomb = zeros_behind(head[:8] + struct.pack("<I", begin + 16 + size) + head[12:], size)
    assert len(bomb) < 40_000
    folder.replace(bomb)
    entry = folder.entries[BAD]
    # What the index says is less than what comes out, or a lie as large.
    for raw_bytes, message in ((entry["raw_data"]["bytes"], "found more"), (begin + 16 + size, "memory")):
        entry["raw_data"]["bytes"] = raw_bytes
        folder.save()
        found, error = outcome(folder.folder, workers)
        assert message in str(error) and found == WHOLE * BAD
        assert error.shard == str(folder.path())
