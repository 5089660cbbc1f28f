"""``asyncloader audit``: prove that each epoch delivered each sample once."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from itertools import groupby

from ..tools.audit import EpochVerdict, verify_audit
from .arguments import add_stores, storage_options
from .printing import print_json, print_lines

HELP = (
    "Merge what all ranks and restarts have recorded under DataLoader(audit=FOLDER). For each epoch, prove "
    "that each sample was delivered exactly once, or list repeated and missing samples. The exit status is 1 "
    'if an epoch is wrong, unfinished or incomplete (ended by uneven="stop" with samples left), and 2 '
    "without records."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "paths", nargs="+", metavar="FOLDER", help="folder that was given to DataLoader(audit=...)"
    )
    parser.add_argument("--epoch", type=int, metavar="N", help="check only this epoch")
    parser.add_argument(
        "--index",
        metavar="URL",
        help="path or URL of an index of the shards, if the loader had none",
    )
    parser.add_argument(
        "--left-out", action="store_true", help="also list the samples that filters and drop_last left out"
    )
    add_stores(parser)


def run(asked: argparse.Namespace) -> int:
    verdicts = verify_audit(
        asked.paths,
        epoch=asked.epoch,
        index=asked.index,
        storage_options=storage_options(asked),
        left_out=asked.left_out,
    )
    if asked.json:
        print_json([asdict(verdict) for verdict in verdicts])
    else:
        _print(verdicts)
    return 0 if all(verdict.verdict == "exact" for verdict in verdicts) else 1


def _print(verdicts: Sequence[EpochVerdict]) -> None:
    datasets = [[*group] for _, group in groupby(verdicts, key=lambda verdict: verdict.dataset)]
    for group in datasets:
        if len(datasets) > 1:
            print_lines(f"dataset {group[0].dataset}:")
        for verdict in group:
            print_lines(*str(verdict).split("\n"))
