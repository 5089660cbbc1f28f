"""Arrays that are damaged, or made to hurt: one clear error whatever is wrong, and no pickle is opened."""

from __future__ import annotations

import gzip
import io
import pickle
import random
import zipfile
import zlib
from typing import Any

import numpy as np
import pytest
from planning import read
from test_arrays import npy, npz

from asyncloader.errors import FormatError
from asyncloader.formats import open_plan
from asyncloader.formats.decoder import EVERYTHING
from asyncloader.types import Answer, Span

MATRIX = np.arange(60.0).reshape(20, 3)
NPY = npy(MATRIX)
NPZ = npz(a=MATRIX, b=np.arange(20))
DEFLATED = npz(True, a=MATRIX, b=np.arange(20))


def fault(name: str, content: bytes, **options: Any) -> FormatError:
    with pytest.raises(FormatError) as caught:
        read(name, content, **options)
    return caught.value


def with_header(header: str, body: bytes = b"", version: bytes = b"\1\0") -> bytes:
    text = header.encode("latin-1")
    width = 2 if version == b"\1\0" else 4
    return b"\x93NUMPY" + version + len(text).to_bytes(width, "little") + text + body


def header_of(descr: Any = "<f8", shape: Any = (2,), by_columns: Any = False) -> str:
    return f"{{'descr': {descr!r}, 'fortran_order': {by_columns!r}, 'shape': {shape!r}, }}\n"


def test_a_shard_cut_anywhere_is_truncated_and_says_at_which_sample() -> None:
    for length in range(len(NPY)):
        error = fault("npy", NPY[:length])
        assert "truncated" in str(error)
        if length >= 128:
            assert (error.offset, error.sample) == (length, (length - 128) // 24)
    for content in (NPZ, DEFLATED):
        for length in range(len(content)):
            assert "truncated" in str(fault("npz", content[:length])) or length < 4


@pytest.mark.parametrize("content", [NPZ, DEFLATED], ids=["stored", "deflated"])
def test_no_flipped_bit_of_an_archive_is_a_wrong_value(content: bytes) -> None:
    expected = [row["a"].tobytes() + row["b"].tobytes() for row in read("npz", content).rows]
    source, raised = random.Random(0), 0
    for _ in range(400):
        damaged = bytearray(content)
        damaged[source.randrange(len(content))] ^= 1 << source.randrange(8)
        try:
            rows = read("npz", bytes(damaged), columns=["a", "b"]).rows
        except FormatError:
            raised += 1
            continue
        assert [row["a"].tobytes() + row["b"].tobytes() for row in rows] == expected
    assert raised > 200


def test_no_flipped_bit_of_a_header_is_another_error() -> None:
    source = random.Random(0)
    for _ in range(1500):
        damaged = bytearray(NPY)
        damaged[source.randrange(128)] ^= 1 << source.randrange(8)
        try:
            read("npy", bytes(damaged))
        except FormatError as error:
            assert str(error).startswith("npy: ")


HUGE = "0x" + "f" * 9000


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "npy: truncated: it is empty"),
        (b"<html>" * 10, "expected the magic b'\\x93NUMPY', found b'<html>'; the bytes look like a web page"),
        (gzip.compress(NPY), "look like gzip; an array is not supported when it is compressed as a whole"),
        (NPZ, "look like a zip archive"),
        (pickle.dumps(MATRIX), "expected the magic"),
        (NPY[:6] + b"\4\0" + NPY[8:], "expected version 1.0, 2.0 or 3.0 of the format, found 4.0"),
        (NPY[:8] + b"\xff\xff" + NPY[10:], "the header claims 65535 bytes; at most 10000 are read"),
        (NPY + b"\0", "takes 608 bytes with its header, and the shard has 609: only one array is read"),
        (NPY + NPY, "only one array is read; save several with numpy.savez"),
        (npy(np.float64(3)), "a single value has no rows to be samples"),
        (with_header("__import__('os').abort()\n"), "the header is no literal of Python"),
        (with_header("(" * 5000 + "\n"), "the header is no literal of Python"),
        (with_header("-" * 9000 + "1\n"), "the header is no literal of Python"),
        (with_header("[]\n"), "the header should have descr, fortran_order and shape, found []"),
        (with_header("{'descr': '<f8', 'shape': (2,)}\n"), "the header should have descr"),
        (with_header(header_of(shape=[2])), "the shape should be a tuple of whole numbers of 0 or more"),
        (with_header(header_of(shape=(-2,))), "the shape should be a tuple of whole numbers of 0 or more"),
        (with_header(header_of(shape=(True,))), "the shape should be a tuple of whole numbers of 0 or more"),
        (with_header(header_of(by_columns=1)), "fortran_order should be True or False, found 1"),
        (with_header(header_of("|O")), "an array of objects is a pickle, which may run any code"),
        (with_header(header_of([("a", "|O")])), "an array of objects is a pickle"),
        (with_header(header_of([("a", [("b", "<i4")])])), "expected numbers, times, texts or bytes"),
        (with_header(header_of([("a", "<i4"), ("a", "<i4")])), "NumPy knows no dtype"),
        (with_header(header_of([("a",)])), "NumPy knows no dtype [('a',)]"),
        (with_header(header_of([])), "expected numbers, times, texts or bytes"),
        (with_header(header_of(7)), "NumPy knows no dtype 7"),
        (with_header(header_of("|V8")), "expected numbers, times, texts or bytes"),
        (with_header(header_of("<f7")), "NumPy knows no dtype '<f7'"),
        (with_header(header_of("S99999999999999999999")), "NumPy knows no dtype"),
        (with_header(header_of("<i4", (10**18,))), "truncated: shape (1000000000000000000,)"),
        (with_header(header_of("<i4", (1 << 63,))), "the shape should be a tuple of whole numbers of 0 or"),
        (with_header(header_of("<i4", (2, 7)).replace("7", HUGE)), "found a number that is too long to be"),
        (with_header(header_of(7).replace("7", HUGE)), "NumPy knows no dtype a number that is too long"),
        (with_header(HUGE), "found a number that is too long to be shown"),
        (with_header(header_of("<i4", ((1 << 63) - 1,) * 31)), "a row has"),
        (with_header(header_of("|u1", (2, *[1] * 32))), "an array of 33 axes, at most 32 are read"),
        (with_header(header_of([("a", "|u1", (1,) * 30)], (2, 1, 1))), "an array of 33 axes"),
        (with_header(header_of("<i4", (10**9, 0))), "a row has 0 bytes"),
        (with_header(header_of("<i4", (2, 10**9))), "a row has 4000000000 bytes"),
        (with_header(header_of("<i4", (10**18, 10**18))), "a row has"),
        (with_header(header_of("|b1"), b"\1\2"), "expected a bool of 0 or 1 [sample 1]"),
        (with_header(header_of("<U1"), b"a\0\0\0\xff\xff\xff\xff"), "damaged: "),
        (with_header(header_of("<i4", (2,)) + "é", bytes(8), b"\3\0"), "the header is no literal of Python"),
    ],
)  # fmt: skip
def test_what_is_no_array_of_values_is_refused(content: bytes, says: str) -> None:
    assert says in str(fault("npy", content))


def test_an_array_of_objects_is_refused_before_its_pickle_is_read() -> None:
    out = io.BytesIO()
    np.save(out, np.array([{}, None], object), allow_pickle=True)
    assert "is a pickle, which may run any code and is not supported" in str(fault("npy", out.getvalue()))
    out = io.BytesIO()
    np.savez(out, a=np.array([{}, None], object))
    assert "npz: member 'a.npy': an array of objects is a pickle" in str(fault("npz", out.getvalue()))


def test_too_much_in_fortrans_order_is_refused_before_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("asyncloader.formats.npy._MOST_HELD_BYTES", 400)
    content = npy(np.asfortranarray(MATRIX))
    assert "480 bytes would be held at once; at most 400 are allowed: save numpy.ascontiguousarray" in str(
        fault("npy", content)
    )
    assert "in Fortran's order" in str(fault("npz", npz(True, a=np.asfortranarray(MATRIX))))


def test_what_all_arrays_of_an_archive_would_hold_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each alone is within bounds, and deflated it is nearly nothing."""
    by_columns = np.asfortranarray(MATRIX)
    both = npz(True, a=by_columns, b=by_columns)
    monkeypatch.setattr("asyncloader.formats.npy._MOST_HELD_BYTES", 500)
    assert "and 960 bytes would be held at once; at most 500" in str(fault("npz", both))
    assert len(read("npz", both, columns=["b"]).rows) == 20
    monkeypatch.setattr("asyncloader.formats.npy.MOST_ROW_BYTES", 31)
    assert "a row of all arrays has 32 bytes; at most 31 are allowed" in str(fault("npz", NPZ))
    assert len(read("npz", NPZ, columns=["a"]).rows) == 20
    monkeypatch.setattr("asyncloader.formats.npz._MOST_ARRAYS", 1)
    assert "2 arrays would be read; at most 1 are" in str(fault("npz", NPZ))


def test_deflated_bytes_that_become_nothing_are_not_read_for_ever() -> None:
    nothing = b"\0\0\0\xff\xff" * 600_000 + zlib.compress(NPY, wbits=-15)
    lying = archive(("a.npy", nothing))
    for at in (lying.index(b"PK\1\2") + 10, 8):  # the method, in the directory and before the member
        lying = patched(lying, at, b"\10\0")
    lying = patched(lying, lying.index(b"PK\1\2") + 24, len(NPY).to_bytes(4, "little"))
    asked = plan_until_error(lying)
    assert sum(stop - start for start, stop in asked) < 4 << 20


def test_a_fault_in_deflated_bytes_is_placed_in_the_member() -> None:
    stored = zlib.compress(NPY, wbits=-15) + b"xx"
    lying = archive(("a.npy", stored))
    for at in (lying.index(b"PK\1\2") + 10, 8):
        lying = patched(lying, at, b"\10\0")
    lying = patched(lying, lying.index(b"PK\1\2") + 24, len(NPY).to_bytes(4, "little"))
    assert f"trailing garbage, before byte {len(stored)} of the compressed member; write" in str(
        fault("npz", lying)
    )


def plan_until_error(content: bytes) -> list[Span]:
    """What a plan asks for before it finds that an archive is damaged."""
    plan = open_plan("npz", selection=EVERYTHING)
    assert plan is not None
    asked = [next(plan)]
    with pytest.raises(FormatError, match="truncated"):
        while True:
            start, stop = asked[-1]
            asked.append(plan.send(Answer(content[start:stop], len(content), None)))
    return asked


def archive(*members: tuple[str, bytes], how: int = zipfile.ZIP_STORED) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", how) as written:
        for name, content in members:
            written.writestr(name, content)
    return out.getvalue()


def patched(content: bytes, at: int, patch: bytes) -> bytes:
    return content[:at] + patch + content[at + len(patch) :]


def entry(content: bytes, number: int = 0) -> int:
    """Where an entry of the directory begins."""
    at = -1
    for _ in range(number + 1):
        at = content.index(b"PK\1\2", at + 1)
    return at


END = NPZ.rindex(b"PK\5\6")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "npz: truncated: the shard is empty"),
        (NPY, "expected a zip archive, found b'\\x93NUMPY'"),
        (archive(), "there is no column in this shard"),
        (archive(("a.txt", b"x")), "member 'a.txt' is no array: its name should end with .npy"),
        (archive(("a.npy", b"x")), "member 'a.npy': expected the magic"),
        (archive(("a.npy", b"")), "member 'a.npy': truncated: it is empty"),
        (archive(("a.npy", NPY), ("b.npy", npy(np.arange(7)))), "found 'a' 20, 'b' 7; choose those"),
        (archive(("a.npy", npy(np.zeros(3, [("x", "i4")])))), "member 'a.npy' is a structure"),
        (archive(("a.npy", NPY + b"\0")), "with its header, and the member has 609"),
        (archive(("a.npy", NPY[:-1])), "with its header, and the member has 607"),
        (archive(("a.npy", NPY), how=zipfile.ZIP_LZMA), "is compressed by method 14"),
        (patched(NPZ, END + 12, b"\0\0\x20\0"), "the directory of the archive cannot be read"),
        (patched(NPZ, END + 12, b"\xff\xff\0\0"), "the directory of the archive cannot be read"),
        (patched(NPZ, entry(NPZ) + 8, b"\1"), "member 'a.npy' is encrypted"),
        (patched(NPZ, entry(NPZ, 1) + 42, bytes(4)), "its header is not where the directory"),
        (patched(NPZ, entry(NPZ, 1) + 20, b"\0\0\1\0"), "damaged: stored, but"),
        (patched(NPZ, entry(NPZ, 1) + 20, b"\0\0\1\0\0\0\1\0"), "its header places it at bytes"),
        (patched(NPZ, entry(NPZ) + 16, bytes(4)), "member 'a.npy': damaged: expected the CRC-32 00000000"),
        (patched(DEFLATED, entry(DEFLATED) + 16, bytes(4)), "damaged: expected the CRC-32 00000000"),
        (patched(NPZ, NPZ.index(b"NUMPY") + 300, b"\xff"), "damaged: expected the CRC-32"),
    ],
)  # fmt: skip
def test_what_is_no_archive_of_arrays_is_refused(content: bytes, says: str) -> None:
    assert says in str(fault("npz", content))


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_two_arrays_of_one_name_are_refused() -> None:
    assert "two members have the same name" in str(fault("npz", archive(("a.npy", NPY), ("a.npy", NPY))))


def test_a_deflated_array_that_lies_about_its_size_is_refused() -> None:
    more, less = archive(("a.npy", NPY), how=8), archive(("a.npy", NPY[:-24]), how=8)
    # The sizes of the other one, in the directory: what is inflated is more, or less, than it says.
    size = len(NPY).to_bytes(4, "little")
    assert "expected 608 bytes when it is inflated, found 584" in str(
        fault("npz", patched(less, entry(less) + 24, size))
    )
    shorter = npy(MATRIX[:10])
    lying = archive(("a.npy", shorter + bytes(1 << 20)), how=8)
    lying = patched(lying, entry(lying) + 24, len(shorter).to_bytes(4, "little"))
    assert "expected 368 bytes when it is inflated, found more" in str(fault("npz", lying))
    assert len(read("npz", more).rows) == 20


def test_rows_before_corrupt_bytes_are_the_same_in_any_chunking() -> None:
    noise = np.random.default_rng(0).integers(0, 4, (3000, 100), np.uint8)
    content = npz(True, a=noise)
    damaged = patched(content, len(content) * 2 // 3, b"\xff" * 40)
    seen = set()
    for chunk_bytes in (999, 70_000, len(content)):
        error = fault("npz", damaged, chunk_bytes=chunk_bytes)
        assert "member 'a.npy'" in str(error)
        seen.add(error.sample)
    assert len(seen) == 1
    assert read("npy", npy(noise)).layout.samples == 3000


def test_a_shard_that_lost_rows_since_the_position_raises() -> None:
    for name, content in (("npy", NPY), ("npz", NPZ)):
        assert read(name, content, start=20).rows == []
        assert "expected at least 21 rows" in str(fault(name, content, start=21))


def test_columns_that_are_not_there_are_named() -> None:
    assert "there is no column 'A', which columns names, in this shard; did you mean 'a'?" in str(
        fault("npz", NPZ, columns=["A"])
    )
    assert "it has 'array'" in str(fault("npy", NPY, columns=["x"]))
