"""What lies in Arrow's buffers is seen as pyarrow sees it, and pandas is not imported for that."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncloader.formats.arrow_columns import bits, is_null, lengths, stored

ENTRIES: dict[str, st.SearchStrategy[Any]] = {
    "int16": st.integers(-5, 5),
    "uint64": st.integers(0, 2**64 - 1),
    "bool": st.booleans(),
    "string": st.text(max_size=3),
    "large_binary": st.binary(max_size=3),
    "list<item: int8>": st.lists(st.integers(0, 9), max_size=3),
    "large_list<item: string>": st.lists(st.text(max_size=2), max_size=3),
}
TYPES = {
    "list<item: int8>": pa.list_(pa.int8()),
    "large_list<item: string>": pa.large_list(pa.string()),
}


@pytest.mark.parametrize("kind", ENTRIES)
@given(data=st.data())
def test_a_part_of_an_array_is_seen_as_pyarrow_sees_it(kind: str, data: st.DataObject) -> None:
    entries = data.draw(st.lists(st.none() | ENTRIES[kind], max_size=20))
    begin = data.draw(st.integers(0, len(entries)))
    stop = data.draw(st.integers(begin, len(entries)))
    array = pa.array(entries, TYPES.get(kind, kind)).slice(begin, stop - begin)
    here = entries[begin:stop]
    assert is_null(array).tolist() == [entry is None for entry in here]
    if "int" in kind and "<" not in kind:
        assert seen(stored, array) == [entry for entry in here if entry is not None]
    elif kind == "bool":
        assert seen(bits, array) == [entry for entry in here if entry is not None]
    else:
        assert lengths(array).tolist() == [0 if entry is None else len(as_bytes(entry)) for entry in here]


def seen(look: Callable[[Any], np.ndarray[Any, Any]], array: Any) -> list[Any]:
    """What is no null: anything stands in its place."""
    found: list[Any] = look(array)[~is_null(array)].tolist()
    return found


def as_bytes(entry: Any) -> Any:
    return entry.encode() if isinstance(entry, str) else entry


def test_pandas_is_not_imported(tmp_path: Path) -> None:
    """As pyarrow does it, where it is installed, when one of its arrays is to become NumPy's."""
    pytest.importorskip("pandas")
    table = {"n": [1, None], "t": [[1, 2], [3]], "b": [True, None], "s": ["a", None], "o": [[1], None]}
    pq.write_table(pa.table(table), tmp_path / "a.parquet")
    script = (
        "import sys, asyncloader as al\n"
        f"rows = list(al.DataLoader(al.from_urls({str(tmp_path / 'a.parquet')!r}), batch_size=None))\n"
        "print(len(rows), 'pandas' in sys.modules)"
    )
    run = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    assert run.stdout.strip() == "2 False"
