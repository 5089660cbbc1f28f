"""Shards of CSV and TSV: a sample for each record, with the names in the first one; every value is text.

CSV has no types: what looks like a number may be a key with zeros in front. Convert values with ``convert``
or in a ``.map``.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from functools import partial
from typing import ClassVar

from ..blocks import Block, OffsetTrail, Rows
from ..errors import FormatError
from .compression import open_stream
from .decoder import LFS_POINTER, MAX_BLOCK_SAMPLES, Decoder, ShardSpec, describe_bytes
from .lines import invalid_text

_BOM = b"\xef\xbb\xbf"
# What a server may send instead of a shard, and would be read as one name and its values, or as no record.
_NO_NAMES = (b"<!doctype", b"<html", b"<?xml", b'{"', b"{\n", b"{\r\n", LFS_POINTER)

_UNENDED = "unexpected end of data"

# The separators that files called CSV use, with their names for messages.
_DELIMITERS = {"\t": "tabs", ";": "semicolons", ",": "commas"}


def check_delimiter(delimiter: object) -> None:
    """Refuse a delimiter that cannot separate fields.

    Raises:
        TypeError: Not a string.
        ValueError: Not one character, or one that means something else: a quote, a line end or a null.
    """
    if not isinstance(delimiter, str):
        raise TypeError(f"delimiter should be a string of one character, but got {type(delimiter).__name__}")
    if len(delimiter) != 1 or delimiter in '"\r\n\0':
        raise ValueError(
            f"delimiter should be one character, such as ';' or a tab, and no quote or line end, but got "
            f"{delimiter!r}"
        )


class CsvDecoder(Decoder):
    """Decode CSV (RFC 4180, in UTF-8): ``{name: text, ...}``, with the names in the first record.

    Fields are separated by commas or another character. A field in quotes may hold that character, line ends,
    and quotes that are written twice. Lines end with ``\\n`` or ``\\r\\n``; blank lines are no records, and a
    byte order mark is dropped. A shard is read from its beginning, where the names are.

    Args:
        delimiter: What separates fields. None for ``usual``; then it is an error if the first record is one
            name with another common delimiter in it, since the samples would have one field of that name.
        usual: The delimiter for the suffix of the shard.
    """

    #: As for lines: a quote that is never closed makes one record of everything that follows.
    most_record_bytes: ClassVar[int] = 256 << 20

    def __init__(self, *, delimiter: str | None = None, usual: str = ",") -> None:
        self._delimiter = usual if delimiter is None else delimiter
        self._is_said = delimiter is not None
        # Python's limit is for the whole process, and 128 KiB by default: a longer text would be an error.
        if csv.field_size_limit() < self.most_record_bytes:
            csv.field_size_limit(self.most_record_bytes)
        self._begun = False
        self._open: list[bytes] = []  # of a record that has not ended
        self._open_bytes = 0
        self._retry_bytes = 0
        self._names: list[str] | None = None
        self._index = 0
        self._line = 1  # the next one of the shard

    def _decode(self, chunk: bytes | memoryview) -> Iterator[Block]:
        chunk = bytes(chunk)
        self._open.append(chunk)
        self._open_bytes += len(chunk)
        is_much = self._open_bytes > self.most_record_bytes
        # An open record is parsed again only when it has doubled, not for each chunk.
        if is_much or (b"\n" in chunk and self._open_bytes >= self._retry_bytes):
            yield from self._parse(is_end=False)
        if self._open_bytes > self.most_record_bytes:
            what = f"csv: a record of more than {self.most_record_bytes} bytes; is a quote not closed?"
            raise self._located(FormatError(what))

    def finish(self) -> Iterator[Block]:
        yield from self._parse(is_end=True)
        if self._names is None:
            raise FormatError("csv: expected the names of the fields in the first record, found nothing")

    def _parse(self, is_end: bool) -> Iterator[Block]:
        """The samples of the complete records; the rest stays open."""
        content = b"".join(self._open)
        if not self._begun:
            content = content.removeprefix(_BOM)
            self._begun = True
        whole = len(content) if is_end else content.rfind(b"\n") + 1
        lines = _lines(content[:whole])
        reader = csv.reader(map(self._text, lines), strict=True, delimiter=self._delimiter)
        samples, done, first_line = [], 0, self._line
        fault: FormatError | None = None
        try:
            for record in reader:
                self._line, done = first_line + reader.line_num, reader.line_num
                if record and (sample := self._sample(record, content)) is not None:
                    samples.append(sample)
                if len(samples) == MAX_BLOCK_SAMPLES:
                    yield self._block(samples)
                    samples = []
        except csv.Error as error:
            if is_end or str(error) != _UNENDED:
                fault = FormatError(f"csv: {error}")
                fault.__cause__ = error
        except FormatError as error:
            fault = error
        if samples:
            yield self._block(samples)
        if fault is not None:
            raise self._located(fault) from fault.__cause__
        rest = b"".join(lines[done:]) + content[whole:]
        self._open, self._open_bytes = [rest], len(rest)
        self._retry_bytes = 2 * len(rest) if done < len(lines) else 0

    def _text(self, line: bytes) -> str:
        try:
            return str(line, "utf-8")
        except UnicodeDecodeError as error:
            raise invalid_text("csv", line, error, describe_bytes(line)) from error

    def _sample(self, record: list[str], content: bytes) -> dict[str, str] | None:
        """The sample of a record; None for the record of the names."""
        if self._names is None:
            is_foreign = content[:64].lstrip().lower().startswith(_NO_NAMES)
            if is_foreign or len(set(record)) < len(record) or "" in record:
                raise FormatError(
                    f"csv: expected {'the' if is_foreign else 'different'} names of the fields in the first "
                    f"record, found {', '.join(map(repr, record))[:200]}{describe_bytes(content)}"
                )
            self._check_separated(record)
            self._names = record
            return None
        if len(record) != len(self._names):
            raise FormatError(
                f"csv: expected {len(self._names)} fields, as the first record has, found {len(record)}"
            )
        return dict(zip(self._names, record, strict=True))

    def _check_separated(self, names: list[str]) -> None:
        """Refuse a single name that seems to be several with another delimiter."""
        if len(names) > 1 or self._is_said:
            return
        for other, called in _DELIMITERS.items():
            if other in names[0] and other != self._delimiter:
                mine = self._delimiter
                raise FormatError(
                    f"csv: expected names with {mine!r} between them in the first record, found the one name "
                    f"{names[0][:200]!r} with {called} in it; if {called} separate the fields, pass "
                    f"delimiter={other!r}; if they are a part of the name, pass delimiter={mine!r}"
                )

    def _block(self, samples: list[dict[str, str]]) -> Block:
        first, self._index = self._index, self._index + len(samples)
        return Rows([*samples], OffsetTrail(first, None))

    def _located(self, error: FormatError) -> FormatError:
        error.args = (f"{error.args[0]} (line {self._line})",)
        error.sample = self._index
        return error


def _lines(content: bytes) -> list[bytes]:
    """The lines, which end at ``\\n`` alone; ``bytes.splitlines`` also splits at ``\\r``."""
    *ended, last = content.split(b"\n")
    return [line + b"\n" for line in ended] + ([last] if last else [])


def open_csv(spec: ShardSpec, *, usual: str = ",") -> Decoder:
    """The decoder of a shard of CSV, or with another usual delimiter; compressed or not."""
    if spec.start_byte:
        raise ValueError("CSV is read from its beginning, where the names are")
    return open_stream(spec, partial(CsvDecoder, delimiter=spec.delimiter, usual=usual))
