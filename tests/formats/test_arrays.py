"""Arrays of NumPy: every kind, order and version is read as NumPy reads it, and no other byte than wanted."""

from __future__ import annotations

import io
import struct
import warnings
import zipfile
import zlib
from typing import Any

import numpy as np
import pytest
from examples_drawn import examples
from hypothesis import given
from hypothesis import strategies as st
from planning import plan, read

from asyncloader.blocks import Columns
from asyncloader.formats.decoder import FooterCache
from asyncloader.formats.selection import make_selection

RNG = np.random.default_rng(0)
ROWS = 50


def npy(array: Any, version: tuple[int, int] | None = None) -> bytes:
    out = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that only newer NumPy reads later versions
        np.lib.format.write_array(out, np.asanyarray(array), version=version, allow_pickle=False)
    return out.getvalue()


def npz(compressed: bool = False, **arrays: Any) -> bytes:
    out = io.BytesIO()
    (np.savez_compressed if compressed else np.savez)(out, **arrays)
    return out.getvalue()


STRUCTURE = np.zeros(
    ROWS, np.dtype([("n", ">i4"), ("flag", "?"), ("v", "f8", (2, 3)), ("name", "U4")], align=True)
)
STRUCTURE["n"], STRUCTURE["name"] = np.arange(ROWS), [f"é{n}" for n in range(ROWS)]
STRUCTURE["v"] = RNG.random((ROWS, 2, 3))

ARRAYS: dict[str, Any] = {
    "numbers": np.arange(ROWS),
    "matrix": RNG.random((ROWS, 7)),
    "images": RNG.integers(0, 256, (ROWS, 4, 5, 3), np.uint8),
    "big-endian": RNG.random((ROWS, 3)).astype(">f4"),
    "fortran": np.asfortranarray(RNG.random((ROWS, 3, 2))),
    "fortran of many columns": np.asfortranarray(RNG.integers(0, 9, (ROWS, 300))),
    "halves": RNG.random((ROWS, 2)).astype(np.float16),
    "complex": RNG.random(ROWS) * 1j,
    "bools": RNG.random((ROWS, 2)) > 0.5,
    "times": np.arange(ROWS).astype("M8[us]"),
    "spans": np.arange(ROWS).astype("m8[25s]"),
    "texts": np.array([f"tëxt {n}" for n in range(ROWS)]),
    "texts of another order": np.array([f"tëxt {n}" for n in range(ROWS)]).astype(">U9"),
    "bytes": np.array([[b"x" * (n % 4)] * 2 for n in range(ROWS)]),
    "structure": STRUCTURE,
    "nothing": np.zeros((0, 3)),
}


def rows_of(array: Any) -> list[Any]:
    """The rows of an array as samples have them, down to types."""
    if array.dtype.names:
        return [dict(zip(array.dtype.names, map(told, row), strict=True)) for row in array]
    return [{"array": told(row)} for row in array]


def told(value: Any) -> Any:
    """A value, and what it is."""
    if isinstance(value, dict):
        return {name: told(part) for name, part in value.items()}
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "SU":
        return value.tolist()
    if isinstance(value, np.ndarray | np.generic):
        return value.dtype.newbyteorder("="), value.shape, value.tolist()
    return value


@pytest.mark.parametrize("name", ARRAYS)
def test_every_row_is_the_one_that_numpy_reads(name: str) -> None:
    expected = rows_of(ARRAYS[name])
    for version in ((1, 0), (2, 0), (3, 0)):
        content = npy(ARRAYS[name], version)
        for chunk_bytes in (1, 131, len(content)):
            reading = read("npy", content, chunk_bytes=chunk_bytes)
            assert [told(row) for row in reading.rows] == expected
            assert reading.positions == [{"sample": row + 1} for row in range(len(expected))]
            assert all(isinstance(block, Columns) for block in reading.blocks)
            assert reading.layout.samples == len(expected)
    for start in range(0, len(expected), 9):
        reading = read("npy", npy(ARRAYS[name]), start=start)
        assert [told(row) for row in reading.rows] == expected[start:]
        assert [position["sample"] for position in reading.positions] == [*range(start + 1, ROWS + 1)]


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("name", sorted({*ARRAYS} - {"structure"}))
def test_arrays_of_an_archive_are_fields(name: str, compressed: bool) -> None:
    array = ARRAYS[name]
    content = npz(compressed, index=np.arange(len(array)), value=array)
    expected = [
        {"index": told(np.int64(index)), "value": row["array"]} for index, row in enumerate(rows_of(array))
    ]
    for chunk_bytes in (1, 131, len(content)):
        reading = read("npz", content, chunk_bytes=chunk_bytes)
        assert [told(row) for row in reading.rows] == expected
        assert reading.positions == [{"sample": row + 1} for row in range(len(expected))]
    for start in range(0, len(expected) + 1, 10):
        reading = read("npz", content, start=start)
        assert [told(row) for row in reading.rows] == expected[start:]
        alone = read("npz", content, start=start, columns=["value"])
        assert [told(row) for row in alone.rows] == [{"value": row["value"]} for row in expected[start:]]


@examples(60)
@given(
    rows=st.integers(0, 40),
    members=st.lists(
        st.tuples(
            st.sampled_from(["<i2", ">f8", "?", "S3", "U2"]),
            st.lists(st.integers(1, 5), max_size=3),
            st.booleans(),
        ),
        min_size=1,
        max_size=4,
    ),
    compressed=st.lists(st.booleans(), min_size=4, max_size=4),
    chunk_bytes=st.integers(1, 5000),
    data=st.data(),
)
def test_any_archive_is_read_from_any_row(
    rows: int, members: list[Any], compressed: list[bool], chunk_bytes: int, data: st.DataObject
) -> None:
    out, arrays = io.BytesIO(), {}
    with zipfile.ZipFile(out, "w") as archive:
        for number, (kind, shape, by_columns) in enumerate(members):
            array = np.random.default_rng(number).integers(0, 2, (rows, *shape)).astype(kind)
            arrays[f"f{number}"] = array
            how = zipfile.ZIP_DEFLATED if compressed[number] else zipfile.ZIP_STORED
            content = npy(np.asfortranarray(array) if by_columns else array)
            archive.writestr(f"f{number}.npy", content, how)
    start = data.draw(st.integers(0, rows))
    reading = read("npz", out.getvalue(), start=start, chunk_bytes=chunk_bytes)
    found = [told(row) for row in reading.rows]
    assert found == [{name: told(array[row]) for name, array in arrays.items()} for row in range(start, rows)]


def test_a_position_asks_for_the_header_and_for_nothing_before_its_row() -> None:
    content = npy(RNG.random((20_000, 10)))
    reading = read("npy", content, start=19_000)
    assert len(reading.rows) == 1000
    assert reading.requested_bytes < 1000 * 80 + 5000
    archive = npz(a=RNG.random((20_000, 10)), b=np.arange(20_000))
    reading = read("npz", archive, start=19_000, footers=FooterCache())
    assert len(reading.rows) == 1000
    assert reading.requested_bytes < 1000 * 88 + 150_000


def test_a_chosen_array_asks_for_its_own_bytes_and_the_directory_is_kept() -> None:
    archive = npz(a=RNG.random((20_000, 10)), b=np.arange(20_000), c=np.zeros((3, 3)))
    footers = FooterCache()
    asked = []
    for _ in range(2):
        reading = read("npz", archive, columns=["b"], footers=footers)
        assert [row["b"] for row in reading.rows] == [*range(20_000)]
        asked.append(len(reading.asked))
    assert reading.requested_bytes < 20_000 * 8 + 80_000
    assert asked == [3, 2]  # its beginning, the directory, and the header of an array
    assert list(read("npz", npz(a=[1], b=[2]), columns=["b", "a"]).rows[0]) == ["b", "a"]


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("kind", ["npy", "npz", "npz, compressed"])
def test_a_plan_opens_any_number_of_decoders(kind: str, order: Any) -> None:
    array = np.array(RNG.integers(0, 9, (ROWS, 300)), order=order)
    content = npy(array) if kind == "npy" else npz(kind != "npz", array=array)
    _, layout = plan(kind[:3], content, selection=make_selection(None, None))
    body = b"".join(content[span.start : span.stop] for span in layout.spans)
    for fed in (40, len(body), len(body)):
        decoder = layout.open_decoder()
        blocks = [*decoder.feed(body[:fed])]
    blocks += decoder.finish()
    assert np.array_equal([row["array"] for block in blocks for row in block.rows()], array)


def test_large_arrays_come_in_turns() -> None:
    """So that neither is held whole before the first row of the other."""
    archive = npz(
        a=np.zeros((1000, 20_000), np.uint8), b=np.zeros((1000, 10_000), np.uint8), c=np.arange(1000)
    )
    reading = read("npz", archive, chunk_bytes=1 << 20)
    sizes = [stop - start for start, stop in reading.layout.spans]
    assert len(sizes) == 5 + 3 + 1
    assert max(sizes) < 5 << 20
    assert sum(len(block) for block in reading.blocks) == 1000
    alone = read("npz", archive, columns=["a"], chunk_bytes=1 << 20)
    assert len(alone.layout.spans) == 1


def test_fields_of_a_structure_are_chosen() -> None:
    reading = read("npy", npy(STRUCTURE), columns=["name", "n"])
    assert [list(row) for row in reading.rows[:1]] == [["name", "n"]]
    assert [row["n"] for row in reading.rows] == [*range(ROWS)]


def test_archives_of_other_writers_are_read() -> None:
    content = npy(np.arange(9))
    plain = io.BytesIO()
    with zipfile.ZipFile(plain, "w") as archive:
        archive.comment = b"c" * 60_000
        with archive.open("ä.npy", "w", force_zip64=True) as member:
            member.write(content)
    unseekable = _Unseekable()
    with zipfile.ZipFile(unseekable, "w") as archive:  # lengths behind the members, as of a pipe
        archive.writestr("ä.npy", content)
    for archived in (plain.getvalue(), unseekable.getvalue()):
        assert [row["ä"] for row in read("npz", archived).rows] == [*range(9)]


@pytest.mark.parametrize("how", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED], ids=["stored", "deflated"])
@pytest.mark.parametrize(("more_bytes", "requests"), [(2000, 3), (13_000, 4), (40_000, 4)])
def test_much_may_be_behind_the_name_of_a_member(how: int, more_bytes: int, requests: int) -> None:
    values = RNG.random(20_000)
    plain = io.BytesIO()
    with zipfile.ZipFile(plain, "w", how) as archive:
        archive.writestr("a.npy", npy(values))
        entry = zipfile.ZipInfo("b.npy")
        entry.compress_type = how
        entry.extra = struct.pack("<HH", 0x9999, more_bytes - 4) + bytes(more_bytes - 4)
        archive.writestr(entry, npy(values))
    reading = read("npz", plain.getvalue(), columns=["b"], footers=FooterCache())
    assert [row["b"] for row in reading.rows] == [*values]
    assert len(reading.asked) == requests  # its beginning, the directory, and the headers of an array


@pytest.mark.parametrize("behind", [b"", b"c", b"c" * 60_000])
@pytest.mark.parametrize("is_counted", [True, False], ids=["comment", "trailing"])
def test_a_kept_directory_is_read_whatever_is_behind_it(behind: bytes, is_counted: bool) -> None:
    archived = npz(a=np.arange(100_000), b=np.zeros(100_000))
    if is_counted:
        archived = archived[:-2] + len(behind).to_bytes(2, "little")
    footers = FooterCache()
    for _ in range(3):
        reading = read("npz", archived + behind, columns=["a"], chunk_bytes=1 << 20, footers=footers)
        assert [row["a"] for row in reading.rows] == [*range(100_000)]


def test_an_archive_of_64_bits_is_read() -> None:
    """As of more than 4 GiB: the directory's own place is in a record before the usual one."""
    archived = npz(a=np.arange(9))
    end = archived.rindex(b"PK\5\6")
    count, size, at = struct.unpack_from("<10xHII", archived, end)
    record = struct.pack("<4sQHHIIQQQQ", b"PK\6\6", 44, 45, 45, 0, 0, count, count, size, at)
    locator = struct.pack("<4sIQI", b"PK\6\7", 0, end, 1)
    usual = struct.pack("<4sHHHHIIH", b"PK\5\6", 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0)
    content = archived[:end] + record + locator + usual
    assert [row["a"] for row in read("npz", content).rows] == [*range(9)]


def test_what_is_deflated_is_inflated_only_as_its_rows_are_wanted() -> None:
    from asyncloader.formats.npy import Deflated

    content = bytes(64 << 20)
    squeezer = zlib.compressobj(9, wbits=-15)
    stored = squeezer.compress(content) + squeezer.flush()
    deflated = Deflated(len(stored), len(content), 0, zlib.crc32(content))
    deflated.put(memoryview(stored))
    assert deflated.available(1000) < 3 << 20
    assert len(deflated.take(1000)) == 1000


class _Unseekable(io.BytesIO):
    def seekable(self) -> bool:
        return False

    def tell(self) -> int:
        raise io.UnsupportedOperation("tell")

    def seek(self, *_: Any) -> int:
        raise io.UnsupportedOperation("seek")
