"""The index: offsets that the writer and the command agree on, and a run that is killed and goes on."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from end_to_end.harness import subprocess_environment
from hypothesis import given
from hypothesis import strategies as st

import asyncloader as al
from asyncloader import testing
from asyncloader.formats import formats, open_decoder
from asyncloader.shards.expectations import Expected
from asyncloader.shards.index_entries import OFFSET_BYTES, OffsetPicker, format_index, parse_index, thin


def entries_of(path: Path) -> dict[str, Expected]:
    return dict(parse_index(path.read_bytes()))


def write_large(folder: Path, suffix: str, samples: int = 30) -> Path:
    """A shard of several offsets: samples of 0.5 to 1.5 MiB, one of 9 MiB."""
    with al.ShardWriter(folder / f"large-%d.{suffix}") as writer:
        for number in range(samples):
            text = f"{number:08d}" * ((9 << 17) if number == 7 else 65_000 + 5_000 * (number % 27))
            writer.write({"__key__": f"{number}", "txt": text})
    return Path(writer.shards[0].path)


# --- which offsets ---


@pytest.mark.parametrize("suffix", ["tar", "jsonl", "tar.gz"])
def test_the_function_finds_the_offsets_that_the_writer_wrote(suffix: str, tmp_path: Path) -> None:
    shard = write_large(tmp_path, suffix)
    written = entries_of(tmp_path / "asyncloader-index.json")
    (tmp_path / "asyncloader-index.json").unlink()
    assert al.build_index(shard) == str(tmp_path / "asyncloader-index.json")
    assert entries_of(tmp_path / "asyncloader-index.json") == written
    offsets = written[shard.name].offsets
    assert offsets is not None and bool(offsets) == (suffix != "tar.gz")
    content = shard.read_bytes()
    assert all(
        offset[1] - before[1] < 2 * OFFSET_BYTES + (9 << 20)
        for before, offset in zip([(0, 0), *offsets], offsets, strict=False)
    )
    for sample, byte in offsets:
        decoder = open_decoder(suffix, start_sample=sample, start_byte=byte)
        first = next(row for block in decoder.feed(content[byte:]) for row in block.rows())
        assert first["__key__"] == str(sample)


def test_a_run_between_two_offsets_is_whole_with_what_closes_it(tmp_path: Path) -> None:
    shard = write_large(tmp_path, "tar")
    offsets = entries_of(tmp_path / "asyncloader-index.json")[shard.name].offsets
    assert offsets is not None and len(offsets) > 2
    content = shard.read_bytes()
    (first, start), (stop, end) = offsets[0], offsets[2]
    decoder = open_decoder("tar", start_sample=first, start_byte=start)
    blocks = [*decoder.feed(content[start:end]), *decoder.feed(formats["tar"].close), *decoder.finish()]
    assert [row["__key__"] for block in blocks for row in block.rows()] == list(map(str, range(first, stop)))


@given(st.lists(st.integers(1, 40), max_size=60), st.integers(1, 50), st.data())
def test_the_offsets_of_a_run_are_those_of_its_samples_however_it_is_cut(
    sizes: list[int], rate: int, data: st.DataObject
) -> None:
    ends = [sum(sizes[: count + 1]) for count in range(len(sizes))]
    one_by_one, in_runs = OffsetPicker(rate), OffsetPicker(rate)
    for index, end in enumerate(ends):
        one_by_one.add(index + 1, end)
    cuts = sorted(data.draw(st.sets(st.integers(0, len(ends)))))
    for first, stop in zip([0, *cuts], [*cuts, len(ends)], strict=True):
        in_runs.add_run(first, ends[first:stop])
    picked = one_by_one.picked(len(ends))
    assert in_runs.picked(len(ends)) == picked
    assert all(sample < len(ends) for sample, _ in picked)
    coarse = OffsetPicker(4 * rate)
    for sample, byte in picked:
        coarse.add(sample, byte)
    directly = OffsetPicker(4 * rate)
    directly.add_run(0, ends)
    assert coarse.picked(len(ends)) == directly.picked(len(ends)), "a coarser rate keeps some of these"


def test_many_offsets_are_thinned_evenly_until_they_fit() -> None:
    every = tuple((number, number * OFFSET_BYTES) for number in range(1, 65))
    shards = dict.fromkeys(("a", "b", "c"), every)
    assert thin(shards, 192) == shards
    thinned = thin(shards, 100)
    assert {len(offsets) for offsets in thinned.values()} == {32}
    assert thinned["a"] == every[1::2]
    assert thin(shards, 2) == dict.fromkeys("abc", ())


@pytest.mark.parametrize(
    ("offsets", "message"),
    [
        ({}, r"shards\[0\]\.offsets: expected array, got object"),
        ([1], r"shards\[0\]\.offsets\[0\]: expected array, got int"),
        ([[1, 2, 3]], r"offsets\[0\]: expected array of length 2, got 3"),
        ([[True, 2]], r"offsets\[0\]\[0\]: expected int, got bool"),
        ([[1, 2.0]], r"offsets\[0\]\[1\]: expected int, got float"),
        ([[0, 10]], r"offsets\[0\]: expected a pair above \[0, 0\] and below \[9, 100\]"),
        ([[1, 10], [1, 20]], r"offsets\[1\]: expected a pair above \[1, 10\]"),
        ([[1, 10], [2, 10]], r"offsets\[1\]: expected a pair above \[1, 10\]"),
        ([[9, 10]], r"below \[9, 100\], the end of the shard, found \[9, 10\]"),
        ([[1, 100]], r"below \[9, 100\]"),
    ],
)
def test_odd_offsets_are_refused_with_their_place(offsets: Any, message: str) -> None:
    entry = {"name": "a.tar", "size_bytes": 100, "samples": 9, "sha256": "00" * 32, "offsets": offsets}
    content = json.dumps({"asyncloader_index": 1, "shards": [entry]}).encode()
    with pytest.raises(al.FormatError, match=message):
        parse_index(content)


_OFFSETS = st.lists(st.integers(1, 98), unique=True).map(
    lambda drawn: tuple((at, 10 * at) for at in sorted(drawn))
)


@given(st.dictionaries(st.sampled_from("abcd"), st.none() | _OFFSETS))
def test_offsets_are_read_back_as_they_were_written(drawn: dict[str, Any]) -> None:
    entries = {name: Expected(1000, 99, bytes(32), None, offsets) for name, offsets in drawn.items()}
    assert parse_index(format_index(entries)) == entries


# --- building it ---


def test_a_bad_shard_is_told_and_what_was_found_of_the_others_is_kept(tmp_path: Path) -> None:
    with al.ShardWriter(tmp_path / "s-%d.jsonl", samples_per_shard=2) as writer:
        for number in range(8):
            writer.write({"n": number})
    (tmp_path / "asyncloader-index.json").unlink()
    bad = Path(writer.shards[1].path)
    sound = bad.read_bytes()
    bad.write_bytes(b"{")
    with pytest.raises(al.FormatError, match="jsonl") as caught:
        al.build_index(f"{tmp_path}/s-*.jsonl", concurrency=2)
    assert caught.value.__notes__ == ["1 of 4 shards are bad; no index was written"]
    assert not (tmp_path / "asyncloader-index.json").exists()
    kept = (tmp_path / ".asyncloader-index.json.partial").read_text().splitlines()
    assert sorted(json.loads(line)["name"] for line in kept) == ["s-0.jsonl", "s-2.jsonl", "s-3.jsonl"]
    bad.write_bytes(sound)
    other = Path(writer.shards[2].path)
    other.write_text('{"n": 0}\n')  # written to since: what was found of it is of no use
    al.build_index(f"{tmp_path}/s-*.jsonl", progress=True)
    assert [entry.samples for entry in entries_of(tmp_path / "asyncloader-index.json").values()] == [
        2,
        2,
        1,
        2,
    ]
    assert sorted(os.listdir(tmp_path)) == [
        "asyncloader-index.json",
        *(f"s-{number}.jsonl" for number in range(4)),
    ]


@pytest.mark.parametrize("is_named", [True, False], ids=["etag", "no etag"])
def test_an_object_that_was_replaced_between_two_runs_is_read_again(is_named: bool, tmp_path: Path) -> None:
    with al.ShardWriter(tmp_path / "shards" / "s-%d.jsonl", samples_per_shard=2) as writer:
        for number in range(6):
            writer.write({"n": number})
    replaced, bad, same = (Path(shard.path) for shard in writer.shards)
    sound = bad.read_bytes()
    bad.write_bytes(b"{")
    index = tmp_path / "index.json"
    faults = [] if is_named else [testing.Headers({"ETag": None, "Last-Modified": None})]
    with testing.serve(tmp_path / "shards", faults=faults) as server:
        urls = f"{server.url}/s-{{0..2}}.jsonl"
        with pytest.raises(al.FormatError):
            al.build_index(urls, output=index)
        bad.write_bytes(sound)
        replaced.write_bytes(replaced.read_bytes().replace(b"1", b"7"))  # as long as it was
        before = len(server.requests)
        al.build_index(urls, output=index)
        whole = {request.path for request in server.requests[before:] if request.range != "bytes=0-0"}
    assert (f"/{same.name}" in whole) == (not is_named)
    entries = entries_of(index)
    for path in (replaced, bad, same):
        assert entries[f"{server.url}/{path.name}"].sha256 == hashlib.sha256(path.read_bytes()).digest()


def test_wrong_calls_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("{}\n")
    for wrong in (0, "2", 1.5, True):
        with pytest.raises(ValueError, match="concurrency should be a positive integer value, but got"):
            al.build_index(tmp_path / "a.jsonl", concurrency=wrong)  # type: ignore[arg-type]  # what is tested
    with pytest.raises(ValueError, match="written to a local path: pass it as -o or output="):
        al.build_index("http://127.0.0.1:1/a.tar")
    with pytest.raises(ValueError, match="format must be one of"):
        al.build_index(tmp_path / "a.zip", format="zip")


def test_a_file_that_is_no_index_is_told_of_before_anything_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("no json\n")
    (tmp_path / "asyncloader-index.json").write_text('{"of": "another program"}')
    with pytest.raises(al.FormatError, match="a file of this name that is not an index"):
        al.build_index(tmp_path / "a.jsonl")
    assert sorted(os.listdir(tmp_path)) == ["a.jsonl", "asyncloader-index.json"]


def test_a_killed_run_goes_on_where_it_was(tmp_path: Path) -> None:
    shards = tmp_path / "shards"
    with al.ShardWriter(shards / "s-%d.jsonl", samples_per_shard=3) as writer:
        for number in range(36):
            writer.write({"n": number})
    index, partial = tmp_path / "index.json", tmp_path / ".index.json.partial"

    def run(url: str) -> subprocess.Popen[bytes]:
        arguments = [sys.executable, "-m", "asyncloader", "index", url, "-o", str(index), "-j", "1"]
        return subprocess.Popen(arguments, env=subprocess_environment(), stdout=subprocess.DEVNULL)

    with testing.serve(shards, latency_s=0.1) as server:
        urls = f"{server.url}/s-{{0..11}}.jsonl"
        with run(urls) as running:
            deadline_s = time.monotonic() + 50
            while not partial.exists() or partial.read_bytes().count(b"\n") < 3:
                assert time.monotonic() < deadline_s
                time.sleep(0.01)
            running.send_signal(signal.SIGKILL)
        assert not index.exists()
        done = [json.loads(line)["name"] for line in partial.read_bytes().splitlines()]
        with partial.open("ab") as file:
            file.write(b'{"name": "cut')
        before = len(server.requests)
        with run(urls) as running:
            assert running.wait(50) == 0
        again = server.requests[before:]
        asked = {server.url + request.path for request in again if request.range != "bytes=0-0"}
        compared = {server.url + request.path for request in again if request.range == "bytes=0-0"}
    assert compared == set(done)  # their versions
    assert asked == {f"{server.url}/s-{number}.jsonl" for number in range(12)} - set(done)
    assert list(entries_of(index).values()) == list(entries_of(shards / "asyncloader-index.json").values())
    assert not partial.exists()
