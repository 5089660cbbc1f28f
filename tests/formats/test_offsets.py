"""Shards that begin with a table of where their samples are, read from front to back and in parts."""

from __future__ import annotations

import struct
import tracemalloc
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from feeding import cut, decoded
from hypothesis import given
from hypothesis import strategies as st
from mds_files import COLUMNS, mds, samples, shard
from planning import plan, read

from asyncloader.blocks import Columns
from asyncloader.errors import FormatError
from asyncloader.formats import open_decoder, open_plan
from asyncloader.formats.decoder import EVERYTHING, FooterCache
from asyncloader.formats.selection import make_selection
from asyncloader.types import Span

SHARD = shard(40)
HEAD = 16 << 10


def plain(rows: list[Any]) -> list[Any]:
    return [{**row, "ids": row["ids"].tolist()} if "ids" in row else row for row in rows]


WANTED = plain(samples(40))


def front(content: bytes, *sizes: int, **options: Any) -> list[Any]:
    """The rows of a shard read from front to back, fed in pieces of ``sizes``."""
    blocks = list(decoded(open_decoder("mds", **options), cut(content, sizes or (len(content) or 1,))))
    assert all(map(len, blocks)), "empty blocks are not yielded"
    return plain([row for block in blocks for row in block.rows()])


@given(st.lists(st.integers(1, 900), min_size=1, max_size=5), st.integers(0, 40))
def test_any_chunking_gives_the_same_from_any_sample_on(sizes: list[int], start: int) -> None:
    assert front(SHARD, *sizes, start_sample=start) == WANTED[start:]
    if start:
        found = read("mds", SHARD, start=start, chunk_bytes=sizes[0])
        assert plain(found.rows) == WANTED[start:]
        assert found.positions == [{"sample": number + 1} for number in range(start, 40)]


def test_nothing_of_large_samples_refers_to_the_memory_they_were_read_to() -> None:
    columns = [("a", "ndarray:uint8:40000", 40000), ("b", "bytes", None)]
    bodies = [struct.pack("<I", number) + bytes([number]) * (40000 + number) for number in range(60)]
    content = mds(columns, bodies)
    for size in (100_001, 1_500_000):
        lent = [bytearray(content[at : at + size]) for at in range(0, len(content), size)]
        rows = [row for block in decoded(open_decoder("mds"), lent) for row in block.rows()]
        for piece in lent:
            piece[:] = bytes(len(piece))
        for number, row in enumerate(rows):
            assert row["a"].tobytes() == bytes([number]) * 40000 and row["b"] == bytes([number]) * number
        assert len(rows) == 60


@pytest.mark.parametrize("size", [60_000, 250_000, 1_500_000])
def test_what_a_chunk_completes_is_handed_out_before_another_one_comes(size: int) -> None:
    """Or it would be lost with a shard whose rest cannot be read, and other samples after a resume."""
    bodies = [struct.pack("<I", 40_000) + bytes([number]) * 40_000 for number in range(100)]
    content = mds([("b", "bytes", None)], bodies)
    bounds = np.frombuffer(content, "<u4", 101, 4)
    for start in (0, 3):
        decoder, samples, fed = open_decoder("mds", start_sample=start), start, 0
        for piece in cut(content, (size,)):
            samples += sum(map(len, decoder.feed(memoryview(piece))))
            fed += len(piece)
            assert samples == max(int(np.searchsorted(bounds, fed, "right")) - 1, start)


def test_a_sample_that_is_kept_keeps_no_other_one() -> None:
    bodies = [struct.pack("<I", 40_000) + bytes([number]) * 40_000 for number in range(200)]
    content = mds([("b", "bytes", None)], bodies)
    tracemalloc.start()
    try:
        kept = [block.rows()[0] for block in decoded(open_decoder("mds"), cut(content, (100_000,)))]
        assert tracemalloc.get_traced_memory()[0] < (len(kept) + 2) * 41_000
    finally:
        tracemalloc.stop()


def test_a_plan_brings_the_table_and_the_bytes_that_are_wanted_alone() -> None:
    content = shard(9000)
    bounds = np.frombuffer(content, "<u4", 9001, 4)
    asked, layout = plan("mds", content, start_sample=8000, stop_sample=8010)
    assert asked == [Span(0, HEAD), Span(HEAD, int(bounds[0]))]
    assert layout.spans == (Span(int(bounds[8000]), int(bounds[8010])),)
    assert layout.samples == 9000
    # What is read whole needs no plan, and so no request of its own for the table.
    assert open_plan("mds", start_sample=0, stop_sample=None) is None


def test_the_table_is_kept_for_the_next_epoch() -> None:
    content, kept = shard(9000), FooterCache()
    first = plan("mds", content, start_sample=8000, footers=kept)
    again = plan("mds", content, start_sample=8000, footers=kept)
    assert (len(first[0]), len(again[0])) == (2, 1) and first[1].spans == again[1].spans


def test_columns_are_picked_in_their_order_and_others_not_looked_at() -> None:
    selection = make_selection(["text", "n"], None)
    rows = front(SHARD, selection=selection)
    assert [list(row.items()) for row in rows] == [[("text", row["text"]), ("n", row["n"])] for row in WANTED]
    damaged = SHARD.replace("sample 7 é".encode(), b"\xff" * 11)
    assert front(damaged, selection=make_selection(["n"], None)) == [{"n": number} for number in range(40)]


def test_tokens_of_one_length_are_one_array_over_the_bytes_of_the_chunk() -> None:
    tokens = np.arange(64 * 16, dtype=np.int32).reshape(64, 16)
    content = mds([("tokens", "ndarray:int32:16", 64)], [row.tobytes() for row in tokens])
    (block,) = list(decoded(open_decoder("mds"), [content]))
    assert isinstance(block, Columns)
    column = block.fields["tokens"]
    assert isinstance(column, np.ndarray) and column.dtype == np.int32 and np.array_equal(column, tokens)


def test_a_shard_without_samples_has_none() -> None:
    assert front(mds(COLUMNS, [])) == []
    assert plan("mds", mds(COLUMNS, []), stop_sample=5)[1].spans == ()


# --- what is wrong ---


def fault(content: bytes, start: int = 0) -> FormatError:
    with pytest.raises(FormatError) as caught:
        read("mds", content, start=start) if start else front(content)
    return caught.value


def test_a_truncated_shard_says_so_wherever_it_ends() -> None:
    for length in range(len(SHARD)):
        assert "truncated" in str(fault(SHARD[:length]))
        assert "truncated" in str(fault(SHARD[:length], start=3))


def test_bytes_behind_the_last_sample_are_refused() -> None:
    for start in (0, 3):
        error = fault(SHARD + b"x", start=start)
        assert "behind the last sample" in str(error) and error.offset == len(SHARD)
    rows: list[Any] = []
    with pytest.raises(FormatError, match="behind the last sample"):
        for block in open_decoder("mds").feed(SHARD + b"x"):
            rows += block.rows()
    assert plain(rows) == WANTED, "what is sound comes before, however the bytes are cut"


def test_samples_before_one_that_does_not_decode_are_handed_out_and_it_is_named() -> None:
    damaged = SHARD.replace("sample 27 é".encode(), b"\xff" * 12)
    bounds = np.frombuffer(SHARD, "<u4", 41, 4)
    decoder = open_decoder("mds")
    rows: list[Any] = []
    with pytest.raises(FormatError, match="column 'text'") as caught:
        for block in decoder.feed(damaged):
            rows += block.rows()
    assert plain(rows) == WANTED[:27]
    assert (caught.value.sample, caught.value.offset) == (27, bounds[27])


def test_a_sample_that_does_not_decode_is_passed_over_alone() -> None:
    damaged = SHARD.replace("sample 27 é".encode(), b"\xff" * 12).replace("sample 3 é".encode(), b"\xff" * 11)
    noted: list[FormatError] = []
    decoder = open_decoder("mds", pass_over=noted.append)
    blocks = [*decoder.feed(damaged), *decoder.finish()]
    assert plain([row for block in blocks for row in block.rows()]) == [
        row for row in WANTED if row["n"] not in (3, 27)
    ]
    assert [error.sample for error in noted] == [3, 27]
    places = [block.trail.place(index).sample for block in blocks for index in range(len(block))]
    assert places == [number for number in range(40) if number not in (3, 27)]


def test_offsets_that_fall_or_lie_are_refused() -> None:
    for at in range(4, 4 + 4 * 41, 4):
        for value in (0, 7, len(SHARD) + 1, 0xFFFFFFFF):
            damaged = SHARD[:at] + struct.pack("<I", value) + SHARD[at + 4 :]
            assert "mds: " in str(fault(damaged))
            fault(damaged, start=3)


def test_a_table_that_claims_much_is_refused_before_any_of_it_is_waited_for() -> None:
    for count in (41, 39, 1 << 20, 0xFFFFFFFF):
        for start in (0, 3):
            assert "mds: " in str(fault(struct.pack("<I", count) + SHARD[4:], start=start))
    # Consistent in itself, and 1 GiB of table.
    huge = struct.pack("<II", 1 << 28, 4 * ((1 << 28) + 2)) + bytes(1 << 16)
    assert "a table of" in str(fault(huge, start=3)) and "a table of" in str(fault(huge))


def test_a_length_that_lies_is_refused_and_nothing_of_it_made_room_for() -> None:
    first = int.from_bytes(SHARD[4:8], "little")
    damaged = SHARD[:first] + struct.pack("<I", 0xFFFFFFF0) + SHARD[first + 4 :]
    tracemalloc.start()
    error = fault(damaged)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert "the fields of the sample take" in str(error) and error.sample == 0
    assert peak < 4 << 20


def test_many_columns_are_made_no_room_for_that_the_samples_do_not_have() -> None:
    columns = [(f"c{number}", "uint8", 1) for number in range(20_000)]
    content = mds(columns, [b"x"] * 1000)
    tracemalloc.start()
    error = fault(content)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert "take at least 20000 bytes" in str(error) and error.sample == 0
    assert peak < 32 << 20


@pytest.mark.parametrize("size", [-3, 10**30])
def test_a_size_that_no_column_has_is_refused_though_nobody_wants_the_column(size: int) -> None:
    content = mds([("p", "pkl", size), ("text", "str", None)], [struct.pack("<I", 4) + b"a"])
    with pytest.raises(FormatError, match="column_sizes"):
        front(content, selection=make_selection(["text"], None))


def test_a_flipped_bit_is_an_error_or_another_value_and_nothing_else() -> None:
    for at in range(0, len(SHARD), 3):
        for bit in (1, 128):
            damaged = SHARD[:at] + bytes([SHARD[at] ^ bit]) + SHARD[at + 1 :]
            with suppress(FormatError):
                assert len(front(damaged)) == 40


@pytest.mark.parametrize(
    ("config", "what"),
    [
        ({"version": 1}, "version 2"),
        ({"format": "csv"}, "expected format 'mds'"),
        ({"column_names": ["ids", "n", "n"]}, "a name is twice"),
        ({"column_names": ["ids", "n"]}, "sizes of columns differ"),
        ({"column_names": "ids"}, r"column_(names|sizes)"),
        ({"column_sizes": [None, 4, None]}, "should have 8 bytes, found 4"),
        ({"column_sizes": [None, None, None]}, "should have 8 bytes, found None"),
        ({"column_sizes": [True, 8, None]}, r"column_(names|sizes)"),
        ({"column_encodings": ["ndarray:int32", "int", "pkl"]}, "a pickle may run any code"),
        ({"column_encodings": ["ndarray:int32", "int", "zip"]}, "it is unknown"),
        ({"column_encodings": ["ndarray:object", "int", "str"]}, "'object' is not one of uint8"),
        ({"column_encodings": ["ndarray:int32:0", "int", "str"]}, "not a shape"),
        ({"column_encodings": ["ndarray::3", "int", "str"]}, "not a shape"),
        ({"column_encodings": [f"ndarray:int8:{'9' * 9},{'9' * 9}", "int", "str"]}, "larger than any shard"),
    ],
)
def test_a_description_that_is_not_sound_is_refused(config: dict[str, Any], what: str) -> None:
    with pytest.raises(FormatError, match=what):
        front(mds(COLUMNS, [], **config))


def test_a_pickle_that_is_not_asked_for_is_in_nobodys_way() -> None:
    bodies = [struct.pack("<I", 3) + b"\x80\x05N" + bytes([7])]
    content = mds([("p", "pkl", None), ("u", "uint8", 1)], bodies)
    assert front(content, selection=make_selection(["u"], None)) == [{"u": 7}]
    with pytest.raises(FormatError, match="columns="):
        front(content, selection=EVERYTHING)
