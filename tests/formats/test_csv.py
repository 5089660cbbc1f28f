"""CSV: what ``csv`` makes of it, in any chunking, and where it is none."""

from __future__ import annotations

import csv
import io
import re
from functools import partial
from typing import Any

import pytest
from feeding import assert_any_chunking_equal, limited, samples_of
from hypothesis import given
from hypothesis import strategies as st

from asyncloader.errors import FormatError
from asyncloader.formats import check_delimited, open_decoder
from asyncloader.formats.csv_records import CsvDecoder

open_csv = partial(open_decoder, "csv")
texts = st.text(st.sampled_from('a",\r\n é\0;'), max_size=6)


@given(st.lists(st.tuples(texts, texts), max_size=8))
def test_what_csv_writes_reads_back(rows: list[tuple[str, str]]) -> None:
    out = io.StringIO()
    csv.writer(out, quoting=csv.QUOTE_ALL).writerows([("first", "second"), *rows])
    expected = [{"first": first, "second": second} for first, second in rows]
    found, _, fault = assert_any_chunking_equal(open_csv, out.getvalue().encode(), (3,))
    assert (found, fault) == (expected, None)


def test_blank_lines_are_no_records_and_a_mark_is_dropped() -> None:
    assert samples_of(open_csv(), b"\xef\xbb\xbfa,b\n\n1,\n\r\n3,4") == [
        {"a": "1", "b": ""},
        {"a": "3", "b": "4"},
    ]


def test_a_long_field_is_read() -> None:
    assert samples_of(open_csv(), b"a\n" + b"x" * 300_000) == [{"a": "x" * 300_000}]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "found nothing"),
        (b"a,a\n", "different names of the fields"),
        (b"a,\n1,2\n", "different names of the fields"),
        (b"a,b\n1,2\n3\n", r"expected 2 fields, as the first record has, found 1 \(line 4\)"),
        (b'a,b\n1,"2\n', r"unexpected end of data \(line 2\)"),
        (b'a,b\n1,"2"x\n', r"expected after"),
        (b"a,b\n1,\xff\n", r"invalid UTF-8 at byte 2 of the line"),
        (b"<!DOCTYPE html>\n<html>\n", "found '<!DOCTYPE html>'; the bytes look like a web page"),
        (b"\xef\xbb\xbf<?xml version='1.0'?><Error/>", "the bytes look like a web page or an XML listing"),
        (b'{"error": "unauthorized", "code": 401}', "the bytes look like JSON"),
        (b'{\n  "error": 401\n}\n', "the bytes look like JSON"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "a Git LFS pointer"),
    ],
)
def test_what_is_no_csv_says_where(body: bytes, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        samples_of(open_csv(), body)
    assert_any_chunking_equal(open_csv, body, (1,))


def test_names_in_brackets_are_names() -> None:
    assert samples_of(open_csv(), b"<TICKER>,[Open],{x}\na,1,2\n") == [
        {"<TICKER>": "a", "[Open]": "1", "{x}": "2"}
    ]


def test_a_quote_that_is_never_closed_is_held_to_a_limit() -> None:
    decoder, piece = limited(CsvDecoder, most_record_bytes=1000)(), b'a\n"'
    with pytest.raises(FormatError, match="more than 1000 bytes; is a quote not closed"):
        for _ in range(100):
            [*decoder.feed(piece)]
            piece = b"x" * 19 + b"\n"


def test_records_behind_a_long_one_are_not_taken_for_a_part_of_it() -> None:
    body = b'a,b\n1,"' + b"x\n" * 300 + b'"\n' + b"2,y\n" * 500
    # When it is looked at it is open, and twice as much is more than the limit.
    chunks = [body[:550], *(body[at : at + 50] for at in range(550, len(body), 50))]
    assert len(samples_of(limited(CsvDecoder, most_record_bytes=1000)(), *chunks)) == 501


# --- what separates fields ---


@pytest.mark.parametrize(
    ("name", "delimiter", "between"),
    [("csv", None, ","), ("tsv", None, "\t"), ("csv", ";", ";"), ("tsv", "|", "|"), ("csv", "\x01", "\x01")],
)
def test_what_csv_writes_with_another_delimiter_reads_back(
    name: str, delimiter: str | None, between: str
) -> None:
    out = io.StringIO()
    rows = [(f"{index}", f'a{between}"b"\n,;\t{index}') for index in range(9)]
    csv.writer(out, delimiter=between).writerows([("id", "text"), *rows])
    found, _, fault = assert_any_chunking_equal(
        partial(open_decoder, name, delimiter=delimiter), out.getvalue().encode(), (5,)
    )
    assert (found, fault) == ([{"id": number, "text": text} for number, text in rows], None)


@pytest.mark.parametrize(
    ("name", "between", "called"),
    [("csv", "\t", "tabs"), ("csv", ";", "semicolons"), ("tsv", ",", "commas"), ("tsv", ";", "semicolons")],
)
def test_names_that_something_else_separates_are_no_one_name(name: str, between: str, called: str) -> None:
    body = between.join(["f", "id", "text"]).encode() + b"\n" + between.join("abc").encode() + b"\n"
    with pytest.raises(FormatError, match=re.escape(f"with {called} in it; if {called} separate")) as caught:
        samples_of(open_decoder(name), body)
    assert f"pass delimiter={between!r};" in str(caught.value)
    assert samples_of(open_decoder(name, delimiter=between), body) == [{"f": "a", "id": "b", "text": "c"}]
    usual = {"csv": ",", "tsv": "\t"}[name]
    (sample,) = samples_of(open_decoder(name, delimiter=usual), body)
    assert [*sample] == [between.join(["f", "id", "text"])]


def test_one_name_alone_and_many_with_odd_characters_are_names() -> None:
    assert samples_of(open_csv(), b"text\na;b\n") == [{"text": "a;b"}]
    assert samples_of(open_csv(), b"a;b,c\n1,2\n") == [{"a;b": "1", "c": "2"}]


@pytest.mark.parametrize(
    ("delimiter", "names", "kind", "message"),
    [
        (b";", ["csv"], TypeError, "a string of one character, but got bytes"),
        ("", ["csv"], ValueError, "one character"),
        ("||", ["csv"], ValueError, "one character"),
        ('"', ["csv"], ValueError, "no quote or line end"),
        ("\n", ["tsv"], ValueError, "no quote or line end"),
        (";", ["csv", "jsonl", "tsv"], ValueError, "fields of csv and tsv, but there are shards of jsonl"),
    ],
)
def test_what_cannot_separate_fields_is_refused(
    delimiter: Any, names: list[str], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        check_delimited(delimiter, names)
