"""``asyncloader report``: a traced pass as a page, or its verdict in three lines."""

from __future__ import annotations

import argparse
import os

from ..atomic_file import write_whole
from ..observe.page import render
from ..observe.trace_file import read_run
from .arguments import add_json
from .printing import print_json, print_lines

HELP = (
    "Print the verdict on a pass that DataLoader(trace=...) has written, and with -o make one HTML file of "
    "it: throughput, what the consumer waits for, bytes in flight, the latency of the store, padding, "
    "balance and errors. The page needs no network and runs no script."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="the file of the pass, such as run.json")
    parser.add_argument("-o", "--output", metavar="PAGE", help="where to write the page, such as report.html")
    add_json(parser)


def run(asked: argparse.Namespace) -> int:
    if asked.output is not None and os.path.realpath(asked.output) == os.path.realpath(asked.run):
        raise ValueError(f"-o should be another file than the run itself, but both are {asked.run}")
    told = read_run(asked.run)
    if asked.output is not None:
        _write(asked.output, render(told))
    if asked.json:
        print_json({**told, "page": asked.output})
    else:
        print_lines(*told["report"]["lines"])
    return 0


def _write(path: str, page: str) -> None:
    path = os.path.abspath(path)
    if not os.path.isdir(folder := os.path.dirname(path)):
        raise ValueError(f"-o should be a file in a folder that is there, but {folder} is none; make it")
    write_whole(path, page.encode())
