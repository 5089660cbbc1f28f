"""Files of Arrow IPC, decoded batch after batch as their blocks come."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from ...blocks import Block
from ...errors import FormatError
from .._push import PushDecoder
from .expansion import check_expansion
from .importing import told
from .messages import CONTINUATION
from .picking import check_rows, pick
from .selection import Choice, Selection, choose
from .spans import HeldSpans

__all__ = ["ArrowFileDecoder", "Place", "read_options"]


class Place(NamedTuple):
    """Where a message is in a file: its metadata from ``start``, its body from ``body`` up to ``stop``."""

    start: int
    body: int
    stop: int


class ArrowFileDecoder(PushDecoder):
    """Decode record batches as they come.

    Args:
        open_file: Makes the file that the blocks are put into; its footer is there.
        places: Of each batch, and before it of the dictionaries that come with it.
        complete: For each batch after how many bytes it is there, with the dictionaries.
        selection: Which columns and rows are wanted.
        start_sample: Rows of the shard that were had already.
    """

    def __init__(
        self,
        open_file: Callable[[], HeldSpans],
        places: Sequence[Sequence[Place]],
        complete: Sequence[int],
        selection: Selection,
        start_sample: int,
    ) -> None:
        super().__init__()
        self._file = open_file()
        self._places = places
        self._complete = complete
        self._selection = selection
        self._start = start_sample
        self._opened: tuple[Any, Choice] | None = None
        self._batch = 0
        self._row = 0

    def _decode(self, chunk: bytes | memoryview) -> Iterator[Block]:
        self._file.feed(chunk)
        while self._batch < len(self._complete) and self._complete[self._batch] <= self._file.fed:
            yield from self._decode_batch()
            self._file.drop(self._complete[self._batch])
            self._batch += 1

    def _decode_end(self) -> Iterator[Block]:
        yield from ()
        self._open()  # for the errors of a shard without batches
        if self._batch < len(self._complete):
            raise FormatError("arrow: truncated within a batch", sample=self._row)
        check_rows(self._row, self._start)

    def _decode_batch(self) -> Iterator[Block]:
        reader, choice = self._open()
        for place in self._places[self._batch]:
            self._check(place)
        with told(f"arrow: batch {self._batch}", self._row):
            batch = reader.get_batch(self._batch)
            batch.validate(full=True)  # pyarrow would follow any offset
            first, self._row = self._row, self._row + len(batch)
            if self._row > self._start:
                yield from pick(batch, first, self._start, choice)

    def _check(self, place: Place) -> None:
        """Hear what a message claims, before pyarrow believes it."""
        content = self._read(place.start, place.body - place.start)
        prefix_bytes = 8 if content.startswith(CONTINUATION) else 4  # Arrow before 0.15 had the length alone
        check_expansion(
            content[prefix_bytes:],
            lambda at, size: self._read(place.body + at, min(size, place.stop - place.body - at)),
            f"arrow: batch {self._batch}",
        )

    def _read(self, at: int, size: int) -> bytes:
        self._file.seek(at)
        return self._file.read(max(size, 0))

    def _open(self) -> tuple[Any, Choice]:
        """pyarrow's reader, and what is wanted of the schema it has found."""
        import pyarrow.ipc

        if self._opened is None:
            with told("arrow: the footer"):
                schema = pyarrow.ipc.open_file(self._file).schema
            choice = choose(self._selection, schema)
            with told("arrow: the footer"):
                reader = pyarrow.ipc.open_file(self._file, options=read_options(schema, choice))
            self._opened = reader, choice
        return self._opened


def read_options(schema: Any, choice: Choice) -> Any:
    """Have pyarrow decode only the columns that are wanted, and in this thread."""
    import pyarrow.ipc

    # Told of each, pyarrow would copy every column that it has read.
    is_all = {*choice.read} == {*schema.names}
    fields = None if is_all else sorted(schema.get_field_index(name) for name in choice.read)
    return pyarrow.ipc.IpcReadOptions(included_fields=fields, use_threads=False)
