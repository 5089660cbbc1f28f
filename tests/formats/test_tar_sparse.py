"""Sparse members: as GNU tar writes them, and as an attacker would."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from feeding import END, assert_any_chunking_equal, padded, pax_header, raw_header, samples_of

from asyncloader.errors import FormatError
from asyncloader.formats.tar import TarDecoder

GNU_TAR = shutil.which("tar")


def write_sparse(path: Path, runs: int) -> bytes:
    with open(path, "wb") as file:
        for run in range(runs):
            file.seek((run * 3 + 1) * 65536)
            file.write(os.urandom(4096))
        file.truncate((runs * 3 + 2) * 65536)
    return path.read_bytes()


@pytest.mark.skipif(GNU_TAR is None, reason="needs GNU tar")
@pytest.mark.parametrize("runs", [0, 1, 3, 30, 60])
@pytest.mark.parametrize("version", ["gnu", "1.0"])
def test_sparse_members_of_gnu_tar_are_expanded(tmp_path: Path, version: str, runs: int) -> None:
    body = write_sparse(tmp_path / "s.bin", runs)
    (tmp_path / "t.txt").write_bytes(b"after")
    form = ["--format=gnu"] if version == "gnu" else ["--format=posix", f"--sparse-version={version}"]
    assert GNU_TAR is not None
    packed = subprocess.run(
        [GNU_TAR, "--sparse", *form, "-cf", "-", "s.bin", "t.txt"], cwd=tmp_path, capture_output=True
    )
    if packed.returncode:
        pytest.skip(f"this tar cannot: {packed.stderr.decode()[:100]}")
    samples = samples_of(TarDecoder(), packed.stdout)
    assert samples == [{"__key__": "s", "bin": body}, {"__key__": "t", "txt": b"after"}]
    if runs == 3:
        assert len(packed.stdout) < len(body), "the archive is not sparse at all"
        assert assert_any_chunking_equal(TarDecoder, packed.stdout, (700,))[0] == samples


def old_gnu(regions: list[tuple[int, int]], real: int, body: bytes, name: bytes = b"a.bin") -> bytes:
    entries = b"".join(b"%011o\0%011o\0" % region for region in regions)
    header = raw_header(name, len(body), b"S", b"ustar  \0", b386=entries, b483=b"%011o\0" % real)
    return header + padded(body) + END


def pax_10(leading: bytes, real: bytes, body: bytes) -> bytes:
    head = pax_header(
        (b"GNU.sparse.major", b"1"), (b"GNU.sparse.minor", b"0"), (b"GNU.sparse.realsize", real)
    )
    stored = padded(leading) + body
    return head + raw_header(b"a.bin", len(stored)) + padded(stored) + END


def test_regions_land_at_their_offsets() -> None:
    expected = [{"__key__": "a", "bin": bytes(10) + b"x" * 512 + bytes(8) + b"yz" + bytes(3)}]
    body = b"x" * 512 + b"yz"
    assert samples_of(TarDecoder(), old_gnu([(10, 512), (530, 2)], 535, body)) == expected
    assert samples_of(TarDecoder(), pax_10(b"2\n10\n512\n530\n2\n", b"535", body)) == expected


BROKEN = [
    ([(0, 512), (511, 2)], 600, 514),  # overlap
    ([(512, 512), (0, 2)], 1100, 514),  # order
    ([(0, 512), (1000, 2)], 1001, 514),  # past the end
    ([(0, 512), (600, 4)], 700, 514),  # more than is stored
    ([(0, 512)], 700, 514),  # less than is stored
    ([(0, 2), (600, 512)], 1200, 514),  # padded by some, not by others
]


@pytest.mark.parametrize(("regions", "real", "stored"), BROKEN)
def test_maps_that_do_not_fit_are_refused(regions: list[tuple[int, int]], real: int, stored: int) -> None:
    body = b"x" * stored
    flat = [b"%d" % number for region in regions for number in region]
    leading = b"\n".join([b"%d" % len(regions), *flat, b""])
    for archive in (
        old_gnu(regions, real, body),
        pax_10(leading, b"%d" % real, body),
    ):
        _, _, fault = assert_any_chunking_equal(TarDecoder, archive)
        assert fault is not None
        assert "sparse map" in fault[0]


@pytest.mark.parametrize(
    "leading",
    [
        b"",
        b"1\n",
        b"1\n0\n",
        b"-1\n",
        b"9999999\n",
        b"1\n0\n" + b"2" * 30,
        b"1\n-1\n2\n",
        b"1\n0\n-2\n",
        b"1\nx\n2\n",
        b"1\n0\n2 \n",
    ],
)
def test_leading_maps_that_are_cut_or_endless_are_refused(leading: bytes) -> None:
    with pytest.raises(FormatError, match="sparse map"):
        samples_of(TarDecoder(), pax_10(leading, b"10", b""))


def test_negative_entries_of_an_old_map_are_refused() -> None:
    header = raw_header(b"a.bin", 2, b"S", b"ustar  \0", b386=b"\xff" * 24, b483=b"%011o\0" % 10)
    with pytest.raises(FormatError, match="sparse offset of 0 or more"):
        samples_of(TarDecoder(), header + padded(b"xx") + END)


def test_an_endless_chain_of_map_blocks_is_refused() -> None:
    header = raw_header(b"a.bin", 0, b"S", b"ustar  \0", b482=b"\1", b483=b"%011o\0" % 10)
    more = (b"%011o\0%011o\0" % (0, 0)) * 21 + b"\1" + bytes(7)
    with pytest.raises(FormatError, match="more than 65536 regions"):
        samples_of(TarDecoder(), header + more * 4000)


def test_holes_of_a_sample_are_bounded() -> None:
    with pytest.raises(FormatError, match="bytes of zeros"):
        samples_of(TarDecoder(), old_gnu([], 1 << 30, b""))
    halves = (old_gnu([], 200 << 20, b"", name).removesuffix(END) for name in (b"a.x", b"a.y"))
    with pytest.raises(FormatError, match="bytes of zeros"):
        samples_of(TarDecoder(), b"".join(halves) + END)


def test_unknown_sparse_versions_and_missing_sizes_are_refused() -> None:
    version = ((b"GNU.sparse.major", b"2"), (b"GNU.sparse.minor", b"0"))
    for records in (version, [(b"GNU.sparse.map", b"0,0")], [(b"GNU.sparse.numbytes", b"1")]):
        with pytest.raises(FormatError, match=r"another version than 1\.0"):
            samples_of(TarDecoder(), pax_header(*records) + raw_header() + END)
    sizeless = pax_header((b"GNU.sparse.major", b"1"), (b"GNU.sparse.minor", b"0"))
    with pytest.raises(FormatError, match="without its real size"):
        samples_of(TarDecoder(), sizeless + raw_header() + END)
    with pytest.raises(FormatError, match="global header"):
        samples_of(TarDecoder(), pax_header((b"GNU.sparse.size", b"1"), kind=b"g") + raw_header() + END)
