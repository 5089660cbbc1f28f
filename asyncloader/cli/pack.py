"""``asyncloader pack``: shards of the files of a folder."""

from __future__ import annotations

import argparse

from ..converting.convert import pack
from .arguments import add_json, add_stores
from .convert import add_output, output_options, say

HELP = (
    "Make shards of the files of a folder: those whose paths are the same up to the first dot of their names "
    "are one sample. In all else it is as convert."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="FOLDER", help="with files, and with folders of any depth")
    add_output(parser)
    parser.add_argument(
        "--labels",
        action="store_true",
        help="the folders in FOLDER are classes: samples get their names as label.txt, their numbers as cls",
    )
    order = parser.add_mutually_exclusive_group()
    order.add_argument(
        "--shuffle",
        type=int,
        default=0,
        metavar="SEED",
        help="draws the random order of the samples; 0 by default",
    )
    order.add_argument(
        "--no-shuffle",
        dest="shuffle",
        action="store_const",
        const=None,
        help="keep the order of the paths, which makes shards of one class each where folders are classes",
    )
    add_stores(parser)
    add_json(parser)


def run(asked: argparse.Namespace) -> int:
    done = pack(
        asked.folder,
        asked.output,
        labels=asked.labels,
        **output_options(asked),
    )
    say(done, asked.json)
    return 0
