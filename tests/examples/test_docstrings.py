"""The examples in the docstrings of public names run as they are, and the most used names have one."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

import asyncloader as al

_EXAMPLE = re.compile(r"^( *)Example:\n\1    ```python\n(.*?)^\1    ```$", re.MULTILINE | re.DOTALL)

_MOST_USED = {
    *("DataLoader", "Dataset", "Dataset.filter", "Dataset.map", "Dataset.shuffle", "Pad", "ShardWriter"),
    *("SkipErrors", "from_iterable", "from_urls", "mix"),
}


def documented() -> Iterator[tuple[str, str]]:
    """Each public name and each method of a public class, with its docstring."""
    public = {name: getattr(al, name) for name in al.__all__} | {"Statistics": al.observe.Statistics}
    for name, value in public.items():
        yield name, inspect.getdoc(value) or ""
        for own, member in vars(value).items() if isinstance(value, type) else ():
            if not own.startswith("_") and callable(getattr(member, "__func__", member)):
                yield f"{name}.{own}", inspect.getdoc(member) or ""


EXAMPLES = {name: dedent(found[2]) for name, text in documented() if (found := _EXAMPLE.search(text))}


def test_the_most_used_names_have_an_example() -> None:
    assert EXAMPLES.keys() >= _MOST_USED


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_example_of_a_docstring_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "shards").mkdir()
    with al.ShardWriter(tmp_path / "shards/train-{:03d}.tar", samples_per_shard=25) as writer:
        for number in range(100):
            writer.write({"__key__": f"{number:06d}", "txt": f"text {number}", "cls": number % 10})
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {"__name__": "example"}
    exec(compile(EXAMPLES[name], name, "exec"), namespace)
    for value in namespace.values():
        if isinstance(value, al.DataLoader):
            value.close()
