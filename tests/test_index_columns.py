"""An index as columns: whatever its text is, they tell what its JSON does, and fail where that fails."""

from __future__ import annotations

import hashlib
import io
import json
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import asyncloader as al
from asyncloader.formats.digest import ALGORITHMS
from asyncloader.shards import index_entries as entries_module
from asyncloader.shards.expectations import Expectations, Expected
from asyncloader.shards.index_entries import format_index, parse_index, read_index
from asyncloader.shards.index_lookup import Entries, place_of, places_of
from asyncloader.stores import names as names_module
from asyncloader.stores.names import Braces, ShardNames
from asyncloader.types import Unpacked
from asyncloader.workers.by_value import dumps_with_modules

_NUMBER = st.integers(0, 20) | st.integers(0, (1 << 63) - 1)


@st.composite
def expected(draw: st.DrawFn) -> Expected:
    size, samples = draw(_NUMBER), draw(st.none() | _NUMBER)
    sha256, crc32c = draw(
        st.tuples(
            st.none() | st.binary(min_size=32, max_size=32), st.none() | st.binary(min_size=4, max_size=4)
        ).filter(any)
    )
    offsets = None
    if draw(st.booleans()):
        most = min(samples or 0, size, 50)
        rising = sorted(draw(st.sets(st.integers(1, most - 1)))) if most > 1 else []
        offsets = tuple((at, at) for at in rising)
    return Expected(size, samples, sha256, crc32c, offsets)


_SEGMENT = st.text(min_size=1, max_size=9).filter(lambda text: "/" not in text and text not in (".", ".."))
_PLAIN = st.text("ab.0-", min_size=1, max_size=9).filter(lambda text: text not in (".", ".."))
_NAME = st.lists(_PLAIN | _SEGMENT, min_size=1, max_size=3).map("/".join) | _PLAIN.map("s3://b/{}".format)
_SHARDS = st.dictionaries(_NAME, expected(), max_size=8)


def outcome_of(content: bytes) -> Any:
    """What an index says, or what is wrong with it."""
    try:
        return parse_index(content)
    except al.FormatError as error:
        return str(error.args[0])


def outcome_of_json(content: bytes) -> Any:
    """The same, of a file that is not written in lines, if only by a tab, and so is read as a whole."""
    return outcome_of(content.replace(b'"shards": [', b'"shards":\t[', 1))


@given(_SHARDS, st.sampled_from([40, 300, 1 << 20]))
def test_columns_tell_what_the_json_does_wherever_it_is_cut(
    shards: dict[str, Expected], read_bytes: int
) -> None:
    content = format_index(shards)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(entries_module, "_READ_BYTES", read_bytes)
        names, entries = read_index(io.BytesIO(content))
    assert names == sorted(shards)
    assert entries == tuple(shards[name] for name in sorted(shards))


SOUND = format_index(
    {
        f"s-{number}.tar": Expected(
            1000 + number, 90 + number, bytes([number]) * 32, bytes(4), ((7, 70), (80, 800))[: number % 3]
        )
        for number in range(5)
    }
)
#: What stands in indexes, and what might stand in its place.
_PIECES = [
    b"", b"0", b"9", b"-1", b"1.0", b'"', b"\\", b"\n", b" ", b",", b"[", b"]", b"{", b"}", b"/", b"..",
    b"\x00", b"\xff", b"\xc3\xa9", b"A", b"a", b"null", b'"samples": 3, ', b'"crc32c": "00000000", ',
    b"[7, 70], ", b"s-1.tar", b"s-2.tar", b'"more": 1, ', b", ", b"},\n", b"://", b"1" * 19,
]  # fmt: skip


@given(st.data())
def test_whatever_an_index_is_changed_to_its_columns_tell_what_the_json_does(data: st.DataObject) -> None:
    content = SOUND
    for _ in range(data.draw(st.integers(1, 3))):
        first = data.draw(st.integers(0, len(content)))
        stop = data.draw(st.integers(first, min(first + 6, len(content))) | st.just(first))
        content = content[:first] + data.draw(st.sampled_from(_PIECES)) + content[stop:]
    assert outcome_of(content) == outcome_of_json(content)


@pytest.mark.parametrize("piece", _PIECES)
def test_a_piece_put_in_anywhere_is_told_as_by_the_json(piece: bytes) -> None:
    begin = SOUND.index(b"\n  {", 200)
    for at in range(begin, begin + 220):
        for gone in (0, len(piece)):
            content = SOUND[:at] + piece + SOUND[at + gone :]
            assert outcome_of(content) == outcome_of_json(content), (at, gone)


def test_what_is_written_here_is_not_read_by_the_slower_parser(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json, "loads", None)
    assert len(read_index(io.BytesIO(SOUND))[0]) == 5


def test_of_many_lines_only_those_around_an_odd_one_are_read_by_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """An index that others have added to keeps its speed, but for a part."""
    shards = {f"{number:05}.tar": Expected(number, number, bytes(32), None, ()) for number in range(3000)}
    shards["01500\\.tar"] = Expected(1, None, None, bytes(4))
    parsed: list[str] = []

    def load(lines: str, load: Any = json.loads, **options: Any) -> Any:
        parsed.append(lines)
        return load(lines, **options)

    monkeypatch.setattr(entries_module, "_READ_BYTES", 4096)
    monkeypatch.setattr(json, "loads", load)
    assert parse_index(format_index(shards)) == shards
    assert len(parsed) == 1 and len(parsed[0]) < 10_000


def test_more_offsets_than_there_may_be_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entries_module, "MOST_OFFSETS", 3)
    with pytest.raises(al.FormatError, match="expected at most 3 offsets, found 4"):
        read_index(io.BytesIO(SOUND))


# --- the columns ---


_EACH = st.lists(st.none() | expected(), max_size=8)


@given(_EACH)
def test_columns_are_the_tuple_of_what_they_were_made_of(each: list[Expected | None]) -> None:
    columns = Expectations.of(each)
    assert columns == tuple(each) and columns == Expectations.of(each) and len(columns) == len(each)
    assert [columns[index] for index in range(-len(each), len(each))] == [*each, *each]
    assert pickle.loads(pickle.dumps(columns)) == columns
    assert columns != (*each, None)
    assert columns.counts() == [None if one is None else one.samples for one in each]
    assert columns.is_indexed == (bool(each) and all(one is not None and one.is_indexed for one in each))


@given(_EACH, st.data())
def test_some_of_them_are_taken_in_any_order(each: list[Expected | None], data: st.DataObject) -> None:
    rows = data.draw(st.lists(st.integers(-1, len(each) - 1), max_size=9))
    taken = Expectations.of(each).take(np.array(rows, np.int64))
    assert taken == tuple(None if row < 0 else each[row] for row in rows)
    assert taken == Expectations.of(taken)


@given(st.lists(_EACH, max_size=4))
def test_parts_are_joined_in_order(parts: list[list[Expected | None]]) -> None:
    joined = Expectations.join(map(Expectations.of, parts))
    assert joined == tuple(one for part in parts for one in part)


@given(st.integers(1, 6), st.data())
def test_parts_are_placed_and_a_later_one_holds(count: int, data: st.DataObject) -> None:
    numbers = st.lists(st.integers(0, count - 1), unique=True)
    parts = [
        (chosen, data.draw(st.lists(st.none() | expected(), min_size=len(chosen), max_size=len(chosen))))
        for chosen in data.draw(st.lists(numbers, max_size=3))
    ]
    wanted: dict[int, Expected | None] = {}
    for chosen, each in parts:
        wanted |= zip(chosen, each, strict=True)
    placed = Expectations.placed(
        count, [(np.array(chosen, np.int64), Expectations.of(each)) for chosen, each in parts]
    )
    told = any(one is not None for _, each in parts for one in each)
    assert placed == (tuple(map(wanted.get, range(count))) if told else ())


@given(_EACH)
def test_the_digest_of_saved_states_is_that_of_each_entry_in_turn(each: list[Expected | None]) -> None:
    """As it was made when states were first saved: a line of the length and a digest for each."""
    digest = hashlib.sha256()
    for one in each:
        if one is not None:
            digest.update(f"{one.size_bytes} {(one.sha256 or one.crc32c or b'').hex()}".encode())
        digest.update(b"\n")
    assert Expectations.of(each).digest() == digest.hexdigest()


_UNPACKED = st.builds(
    Unpacked,
    st.integers(0, 1 << 50),
    st.none() | st.tuples(st.sampled_from(ALGORITHMS), st.binary(min_size=1, max_size=64)),
    st.none(),  # of no index, but of who reads it
)


@given(
    st.lists(st.none() | st.builds(Expected, st.integers(0, 9), unpacked=st.none() | _UNPACKED)), st.data()
)
def test_what_shards_become_is_kept_by_shard(each: list[Expected | None], data: st.DataObject) -> None:
    columns = Expectations.of(each)
    assert columns == tuple(each)
    rows = data.draw(st.lists(st.integers(-1, len(each) - 1)))
    taken = columns.take(np.array(rows, np.int64))
    assert taken == tuple(None if row < 0 else each[row] for row in rows)
    # States that were saved before an index said so go on.
    others = [None if one is None else replace(one, unpacked=None) for one in each]
    assert columns.digest() == Expectations.of(others).digest()


def test_the_digest_of_a_saved_state_stays() -> None:
    entries = [Expected(7, 1, b"s" * 32, b"c" * 4), None, Expected(8, None, None, b"c" * 4)] * 2000
    assert Expectations.of(entries).digest() == (
        "f02f85f4f6b831f0191463ddcfe25dc433590f3c6e7f54ed83469847a143800a"
    )


# --- places ---


_URLS = [
    "/d/a.tar", "/d/x/../a.tar", "a.tar", "./a.tar", "d/./a", "/d/.", "/d/..", "/d/", "file:///d/a.tar",
    "file:///d/%61.tar", "http://h/d/a.tar?x=1", "HTTP://u:w@H/d/%61.tar", "http://h/a?x=/b.tar", "http://h",
    "http://h/d#/a.tar", "s3://bucket/d/a.tar", "s3://b/%61.tar", "s3://b/a?b#c.tar", "s3://b/d/a://b.tar",
    "hf://datasets/o/n/a.tar", "http://h/a\tb.tar", "http://h/a b.tar", "odd://h/a.tar", "/a{b/c}.tar",
]  # fmt: skip


def told_from(folder: str, place: str) -> str:
    below = place.removeprefix(folder)
    return place if "://" in below else below


@pytest.mark.parametrize("folder", ["/d/", "http://h/d/", "s3://b/", "s3://b/d/", "/nowhere/"])
def test_places_of_many_are_those_of_each(folder: str) -> None:
    assert [*places_of(_URLS, folder)] == [told_from(folder, place_of(url)) for url in _URLS]
    assert [*places_of([url + "x" for url in _URLS] * 2, folder)] == [
        told_from(folder, place_of(url + "x")) for url in _URLS * 2
    ]


@pytest.mark.parametrize("folder", ["/d/", "http://h/d/", "s3://b/d/", "/"])
@pytest.mark.parametrize(
    "pattern",
    ["/d/s-{0..3}.tar", "/d/{a,b}/s-{0..1}.tar", "/d/../d/s-{0..3}.tar", "s-{0..3}.tar", "file:///d/{x,y}.tar",
     "http://u:w@H/d/s-{0..3}.tar", "http://h/d/s-{0..3}.tar?x=1", "http://h/%7Bd/s-{0..3}.tar",
     "s3://b/d/s-{00..12}.tar", "s3://b/{c,d}/s-{0..1}.tar", "http://h/d}/s-{0..3}.tar"],
)  # fmt: skip
def test_places_of_a_pattern_are_those_of_its_names(pattern: str, folder: str) -> None:
    names = Braces(pattern)
    wanted = [told_from(folder, place_of(name)) for name in names]
    assert [*places_of(names, folder)] == wanted
    assert [*places_of(ShardNames([names, ("/d/z.tar",)]), folder)] == [
        *wanted,
        told_from(folder, "/d/z.tar"),
    ]


@given(st.lists(st.text("ab", min_size=1, max_size=3), max_size=20), st.data())
@pytest.mark.parametrize("run", [1, 3, 4096])
def test_entries_are_found_in_any_order(run: int, drawn: list[str], data: st.DataObject) -> None:
    sizes = {name: size for size, name in enumerate(drawn)}
    listed = data.draw(st.permutations([*sizes]))
    lines = ",".join(json.dumps({"name": name, "size_bytes": sizes[name]}) for name in listed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(names_module, "_RUN", run)
        entries = Entries(
            "/d/asyncloader-index.json", b'{"asyncloader_index": 1, "shards": [%s]}' % lines.encode()
        )
        for asked in (listed, listed[1:], listed[::-1], [*listed, "ba", "c"], ["c", *listed]):
            wanted = [None if (size := sizes.get(name)) is None else Expected(size) for name in asked]
            assert entries.of([f"/d/{name}" for name in asked]) == tuple(wanted)


def test_a_name_that_is_there_twice_far_apart_is_told_with_its_place() -> None:
    shards = {f"{number:05}.tar": Expected(number, number, bytes(32), None, ()) for number in range(9000)}
    lines = format_index(shards).splitlines()
    lines[8888] = lines[5].replace(b"00004", b"00003")
    with pytest.raises(al.FormatError, match=r"shards\[8887\]\.name: '00003\.tar' occurs twice"):
        Entries("/d/asyncloader-index.json", b"\n".join(lines) + b"\n")
    document = json.loads(b"\n".join(lines))
    with pytest.raises(al.FormatError, match=r"shards\[8887\]\.name: '00003\.tar' occurs twice"):
        Entries("/d/asyncloader-index.json", json.dumps(document).encode())


def test_what_a_worker_is_sent_of_an_index_is_small_and_the_rest_apart(tmp_path: Path) -> None:
    shards = {
        f"{number:05}.tar": Expected(100, 10, bytes(32), bytes(4), ((5, 50),)) for number in range(20_000)
    }
    (tmp_path / "asyncloader-index.json").write_bytes(format_index(shards))
    recipe = al.from_urls(f"{tmp_path}/{{00000..19999}}.tar").shuffle(10)
    assert len(al.DataLoader(recipe, 10)) == 20_000
    pickled, buffers, _ = dumps_with_modules(recipe)
    # Columns of less than 64 KiB, here that of the bits, are not kept apart.
    assert len(pickled) < 100_000 and sum(buffer.raw().nbytes for buffer in buffers) > 1_000_000
    assert pickle.loads(pickled, buffers=buffers) == recipe == pickle.loads(pickle.dumps(recipe))
