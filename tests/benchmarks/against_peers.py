"""asyncloader beside torch's DataLoader, webdataset, LitData and torchdata's nodes, and the machine's limits.

    python tests/benchmarks/against_peers.py [WORKLOAD ...] [--rounds 3] [--scale 1.0] [--write docs]

The rows of a workload run in turn, round by round, each pass in a fresh process. In every pass it is checked
that each sample came once; a row where one did not is shown as wrong, without its speed, and the command ends
with 1. The peers are installed into an environment of their own, on top of this one. With --write the figures
go to ``benchmarks.json`` in that folder, where those of other workloads stay, and the tables in
``benchmarks.md`` and the plot ``benchmarks.svg`` are made anew out of all of them. All targets, and where the
time went, are only printed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

from _measure import machine
from peers.environment import ROOT, make_environment
from peers.plot import draw
from peers.report import render, render_details, replace_section
from peers.rounds import Runner
from peers.workloads import WORKLOADS


def main() -> int:
    options = parser().parse_args()
    if unknown := set(options.workloads) - set(WORKLOADS):
        parser().error(
            f"no workload is called {', '.join(sorted(unknown))}; there are {', '.join(WORKLOADS)}"
        )
    peers_python = options.peers_python
    if peers_python is None and not options.without_peers:
        peers_python = make_environment(ROOT / ".peers")
    runner = Runner(peers_python, options.rounds, options.scale)
    conditions = {
        "machine": f"{machine()}, torch {version('torch')}",
        "commit": commit(),
        "scale": options.scale,
    }
    wrong = False
    for name in options.workloads or WORKLOADS:
        print(f"\n{name}", file=sys.stderr)
        rows = runner.run(WORKLOADS[name], lambda line: print(f"  {line}", file=sys.stderr))
        found = {name: {"command": command_of(name, options), **conditions, "rows": rows}}
        print(f"\n{render(found)}\n\n{render_details(WORKLOADS[name], rows)}", flush=True)
        if options.write:
            write(options.write, found)
        wrong |= any(run["wrong"] for row in rows for run in row["runs"])
    return int(wrong)


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("workloads", nargs="*", metavar="WORKLOAD", help=", ".join(WORKLOADS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0, help="of the number of samples")
    parser.add_argument("--write", type=Path, metavar="FOLDER", help="where benchmarks.md is")
    peers = parser.add_mutually_exclusive_group()
    peers.add_argument("--peers-python", metavar="PROGRAM", help="of an environment that has them already")
    peers.add_argument("--without-peers", action="store_true", help="asyncloader, torch and the limits alone")
    return parser


def commit() -> str:
    """Of the source that is measured."""
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--exclude=*"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip() or "unknown"


def command_of(name: str, options: argparse.Namespace) -> str:
    """What measures a workload in this way."""
    command = f"python tests/benchmarks/against_peers.py {name} --rounds {options.rounds}"
    return command if options.scale == 1 else f"{command} --scale {options.scale:g}"


def write(folder: Path, found: dict[str, Any]) -> None:
    """Put these workloads in the place of their older figures, and make the tables and the plot anew."""
    figures = folder / "benchmarks.json"
    results = {**(json.loads(figures.read_text()) if figures.exists() else {}), **found}
    page = folder / "benchmarks.md"
    text = replace_section(page.read_text(), render(results))
    figures.write_text(dumps(results))
    page.write_text(text)
    (folder / "benchmarks.svg").write_text(draw(results))


def dumps(results: dict[str, Any]) -> str:
    """JSON with a line for each row of a table, so that what changed can be read."""
    parts = []
    for name, found in results.items():
        rows = ",\n".join(f"  {json.dumps(row)}" for row in found["rows"])
        about = json.dumps({key: value for key, value in found.items() if key != "rows"})
        parts.append(f'{json.dumps(name)}: {about[:-1]}, "rows": [\n{rows}\n]}}')
    return "{\n" + ",\n".join(parts) + "\n}\n"


if __name__ == "__main__":
    sys.exit(main())
