"""The table of formats, and decoders opened by name."""

from __future__ import annotations

import gzip
from typing import Any

import pytest
from feeding import assert_any_chunking_equal, cut, make_tar, outcome, samples_of
from test_compression import COMPRESS, SKIPPABLE
from tfrecord_files import example, record

from asyncloader.errors import FormatError
from asyncloader.formats import (
    check_format,
    columns_of_all,
    format_of,
    formats,
    has_format,
    open_decoder,
    open_plan,
)
from asyncloader.formats.decoder import EVERYTHING

BODIES = {
    "tar": make_tar([(f"{index:03d}.txt", b"x" * index) for index in range(9)]),
    "jsonl": b"".join(b'{"n": %d}\n' % index for index in range(9)),
    "text": b"".join(b"line %d\n" % index for index in range(9)),
    "csv": b"n,text\r\n"
    + b"".join(b'%d,"line, or ""line"" \n%d"\r\n' % (index, index) for index in range(9)),
    "tfrecord": b"".join(record(example({"n": [index], "text": [b"x" * index]})) for index in range(9)),
    "tsv": b"n\ttext\n" + b"".join(b'%d\t"line\t, or\n"\n' % index for index in range(9)),
}

#: Those that have columns are in test_columnar, test_offsets and test_mds.
FED = [name for name, row in formats.items() if "columns" not in row.options]


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("a.tar", "tar"), ("s3://b/x.y/a.TAR.GZ", "tar"), ("a.tgz", "tar"), ("a.tar.zst", "tar"),
        ("a.jsonl", "jsonl"), ("a.ndjson.bz2", "jsonl"), ("dir/a.txt.xz", "text"), ("a.text", "text"),
        ("a.parquet", "parquet"), ("a.ARROW", "arrow"), ("hf://datasets/me/set/a.feather", "arrow"),
        ("a.pq", "parquet"), ("a.ipc", "arrow"), ("a.csv", "csv"), ("a.CSV.gz", "csv"),
        ("a.tsv", "tsv"), ("a.TSV.zst", "tsv"),
        ("a.npy", "npy"), ("dir/a.NPZ", "npz"),
        ("https://h/a.tar?X-Amz-Signature=1.txt#f", "tar"), ("/weird?.tar", "tar"),
    ],
)  # fmt: skip
def test_the_suffix_names_the_format(path: str, name: str) -> None:
    assert format_of(path) == name


@pytest.mark.parametrize(
    "path", ["a", "a.json", "a.gz", "tar", "a.tar.gz.zst", "a.tar.zst.gz", "h://h/p?x=.tar"]
)
def test_unknown_suffixes_list_the_known_ones(path: str) -> None:
    # Those that may be compressed first.
    with pytest.raises(
        ValueError, match=r"\.tar.*\.ndjson.*\.zst.* after it, or one of \.parquet, \.pq, \.arrow"
    ):
        format_of(path)


def test_the_message_about_a_suffix_tells_no_secret() -> None:
    with pytest.raises(ValueError, match=r"'x\.bin'") as caught:
        format_of("https://user:SENTINEL@host/x.bin?token=SENTINEL")
    assert "SENTINEL" not in str(caught.value)


@pytest.mark.parametrize("path", ["s3://b/odd://[x", "s3://b/https://example.com\u2100/p.html"])
def test_names_that_are_no_urls_have_no_format(path: str) -> None:
    assert not has_format(path) and has_format(f"{path}.tar")


def test_unknown_formats_are_refused() -> None:
    for name, row in formats.items():
        if row.suffixes:
            check_format(name)
    with pytest.raises(ValueError, match=r"al\.from_litdata"):
        check_format("litdata")
    with pytest.raises(
        ValueError,
        match=r"'parquet', 'arrow', .*'mds', 'npy', 'npz', 'tfrecord', .*'litdata', not 'zip'",
    ):
        check_format("zip")
    with pytest.raises(ValueError, match="0 or more"):
        open_decoder("tar", start_sample=-1)
    with pytest.raises(ValueError, match="CSV is read from its beginning"):
        open_decoder("csv", start_byte=10)


@pytest.mark.parametrize("name", FED)
@pytest.mark.parametrize("compression", [None, *COMPRESS])
def test_content_says_whether_to_decompress_and_every_position_reopens(
    name: str, compression: str | None
) -> None:
    body = BODIES[name]
    stored = body if compression is None else COMPRESS[compression](body)
    samples, positions, fault = assert_any_chunking_equal(lambda: open_decoder(name), stored, (7,))
    assert samples == samples_of(open_decoder(name), body)
    assert (len(samples), fault) == (9, None)
    for index, position in enumerate(positions, 1):
        assert ("byte" in position) == (compression is None and name not in ("csv", "tsv"))
        decoder = open_decoder(name, start_sample=index, start_byte=position.get("byte", 0))
        rest = outcome(decoder, cut(stored[position.get("byte", 0) :], (97,)))
        assert rest == (samples[index:], positions[index:], None)
        assert outcome(open_decoder(name, start_sample=index), [stored]) == rest


@pytest.mark.parametrize("name", FED)
def test_skippable_frames_in_front_are_recognized(name: str) -> None:
    stored = SKIPPABLE + COMPRESS["zstd"](BODIES[name])
    assert samples_of(open_decoder(name), stored) == samples_of(open_decoder(name), BODIES[name])


def test_a_format_is_fed_or_has_a_plan() -> None:
    for name in (name for name, row in formats.items() if row.suffixes):
        plan = open_plan(name)
        assert (plan is None) == (formats[name].open is not None)
        if plan is not None:
            with pytest.raises(AssertionError, match="not read from front to back"):
                open_decoder(name)


@pytest.mark.parametrize("path", ["s3://b/a.parquet.gz", "a.arrow.zst", "A.FEATHER.XZ", "a.npy.gz"])
def test_what_is_read_in_parts_is_not_compressed_as_a_whole(path: str) -> None:
    assert has_format(path)  # so that a folder does not pass over it
    with pytest.raises(ValueError, match="is compressed as a whole"):
        format_of(path)


@pytest.mark.parametrize("compression", COMPRESS)
@pytest.mark.parametrize("name", FED)
def test_a_compressed_shard_cut_at_any_byte_raises(name: str, compression: str) -> None:
    stored = COMPRESS[compression](BODIES[name])
    for length in range(4, len(stored)):
        assert outcome(open_decoder(name), [stored[:length]])[2] is not None, f"cut at {length}"


def test_a_restart_does_not_sniff() -> None:
    line = b"BZh91AY&SY is not bzip2 here\n"
    samples: list[Any] = samples_of(open_decoder("text", start_sample=3, start_byte=40), line)
    assert samples == [{"__key__": "3", "text": line.decode().strip()}]


def test_shards_shorter_than_a_signature_are_read() -> None:
    assert samples_of(open_decoder("text"), b"BZh") == [{"__key__": "0", "text": "BZh"}]
    assert samples_of(open_decoder("jsonl"), b"") == []
    with pytest.raises(FormatError, match="the shard is empty"):
        samples_of(open_decoder("tar"))


def test_a_shard_that_lost_samples_since_the_position_raises() -> None:
    for stored in (BODIES["text"], gzip.compress(BODIES["text"])):
        assert samples_of(open_decoder("text", start_sample=9), stored) == []
        with pytest.raises(FormatError, match=r"at least 10 samples.*found 9"):
            samples_of(open_decoder("text", start_sample=10), stored)


def test_columns_are_chosen_where_all_shards_have_some() -> None:
    assert columns_of_all(["b", "a"], ["parquet", "arrow", "npz"]).columns == ("b", "a")
    assert columns_of_all(["b", "a"], ["parquet", "tar"]) is EVERYTHING
    assert columns_of_all(None, ["parquet"]) is EVERYTHING
    with pytest.raises(ValueError, match="names one twice: a, a"):
        columns_of_all(["a", "a"], ["parquet"])
