"""``python -m asyncloader.audit``: prove that each epoch delivered each sample once."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from itertools import groupby

from .verdict import EpochVerdict
from .verifying import verify_audit

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; 0 if every epoch is proved, 1 if one is not, 2 for a wrong call."""
    asked = _parser().parse_args(arguments)
    try:
        verdicts = verify_audit(
            asked.paths, epoch=asked.epoch, manifest=asked.manifest, left_out=asked.left_out
        )
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    if asked.json:
        print(json.dumps([asdict(verdict) for verdict in verdicts], indent=2))
    else:
        _print(verdicts)
    return 0 if all(verdict.verdict == "exact" for verdict in verdicts) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m asyncloader.audit",
        description="Merge what all ranks recorded under DataLoader(audit=FOLDER), over restarts, and prove "
        "that each epoch delivered each sample once, or name what came twice or never. The exit status is 0 "
        "if all epochs are proved, 1 if one is wrong or unfinished, 2 if there is nothing to be judged.",
    )
    parser.add_argument("paths", nargs="+", metavar="FOLDER", help="as given to DataLoader(audit=...)")
    parser.add_argument("--epoch", type=int, metavar="N", help="look at this one only")
    parser.add_argument(
        "--manifest", metavar="PATH", help="says how many samples shards have, if the loader did not know"
    )
    parser.add_argument("--left-out", action="store_true", help="name what filters and drop_last left out")
    parser.add_argument("--json", action="store_true", help="print the verdicts as JSON")
    return parser


def _print(verdicts: Sequence[EpochVerdict]) -> None:
    recipes = [[*group] for _, group in groupby(verdicts, key=lambda verdict: verdict.recipe)]
    for group in recipes:
        if len(recipes) > 1:
            print(f"recipe {group[0].recipe}:")
        for verdict in group:
            print(verdict)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
