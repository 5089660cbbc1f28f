"""``asyncloader head``: the first samples of shards, to look at."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from ..previews import Preview, preview_sample
from ..printable import clip
from ..quantity import bytes_text as size_of
from .arguments import add_columns, add_json, add_shards
from .printing import counted, print_json, print_lines, print_table
from .recipe import open_recipe, told_of_fields

HELP = (
    "Show the first samples: what each field is, with dtype, shape, size and beginning. Nothing is decoded "
    "but the format of the shards."
)

# Bytes and texts have no more to tell than their size.
_WITHOUT_KIND = ("number", "bool", "null")
# Of a field's name in the table; in JSON it is whole.
_MOST_OF_NAME = 60


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_shards(parser)
    parser.add_argument("-n", "--samples", type=int, default=3, metavar="N", help="how many samples; 3")
    add_columns(parser)
    add_json(parser)


def run(asked: argparse.Namespace) -> int:
    recipe = open_recipe(asked)
    with told_of_fields():
        samples = [preview_sample(sample) for sample in recipe.head(asked.samples)]
    if asked.json:
        print_json({"samples": [_as_json(sample) for sample in samples]})
        return 0
    for number, sample in enumerate(samples):
        if number:
            print_lines("")
        print_lines(f"sample {number}")
        print_table(map(_row, sample.items()), right=[2])
    if not samples:
        print_lines("no samples")
    return 0


def _row(field: tuple[str, Preview]) -> tuple[str, ...]:
    name, preview = field
    return f"  {clip(name, _MOST_OF_NAME)}", _kind(preview), _size(preview), preview.beginning


def _as_json(sample: Mapping[str, Preview]) -> dict[str, Any]:
    return {name: asdict(preview) for name, preview in sample.items()}


def _kind(preview: Preview) -> str:
    """Such as ``jpeg 640x480``, ``float32 (3, 4)``, ``list of 12 int``."""
    shape: Sequence[int] = preview.shape or ()
    if preview.kind == "array":
        return f"{preview.dtype} {tuple(shape)}"
    if preview.kind == "npy":
        return f"npy {preview.dtype} {tuple(shape)}"
    if preview.kind == "list":
        return f"list of {shape[0]} {preview.dtype or 'values'}"
    if preview.kind == "object":
        return f"object of {counted(shape[0], 'field')}"
    if len(shape) == 2:
        return f"{preview.kind} {shape[1]}x{shape[0]}"
    return preview.dtype or preview.kind


def _size(preview: Preview) -> str:
    return "" if preview.kind in _WITHOUT_KIND else size_of(preview.size_bytes)
