"""``asyncloader report``: show a traced pass as a page, or its bottleneck in three lines."""

from __future__ import annotations

import argparse
import os

from ..atomic_file import write_whole
from ..observe.page import render
from ..observe.trace_file import read_run
from .printing import print_json, print_lines

HELP = (
    "Print the bottleneck of a pass that DataLoader(trace=...) has recorded. With -o, write an HTML page: "
    "throughput, what the training loop waits for, bytes in flight, latency of the store, padding, balance "
    "of workers, errors. The page needs no network and runs no script."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="file of the pass, such as run.json")
    parser.add_argument(
        "-o", "--output", metavar="PAGE", help="write the page to this file, such as report.html"
    )


def run(asked: argparse.Namespace) -> int:
    if asked.output is not None and os.path.realpath(asked.output) == os.path.realpath(asked.run):
        raise ValueError(f"-o should be another file than the run itself, but got {asked.run} for both")
    traced = read_run(asked.run)
    if asked.output is not None:
        path = os.path.abspath(asked.output)
        if not os.path.isdir(folder := os.path.dirname(path)):
            raise ValueError(f"-o should be a file in an existing folder, but there is no {folder}: make it")
        write_whole(path, render(traced).encode())
    if asked.json:
        print_json({**traced, "page": asked.output})
    else:
        print_lines(*traced["report"]["lines"])
    return 0
