"""``asyncloader simulate``: estimate the speed of a pass without reading its shards."""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

from ..loader.options import memory_bytes
from ..quantity import bytes_text as size_of
from ..quantity import parse_bytes, parse_rate, parse_seconds
from ..shards.expectations import Known
from ..tools.simulate import Balance, Outcome, PlannedRun, Resized, simulate, simulate_resize
from .arguments import add_format, add_stores, open_shards
from .printing import counted, print_json, print_lines, print_table

HELP = (
    "Estimate the speed, the bottleneck and the balance of a pass from its plan and from the times of its "
    "stages. Only the index of shards is read. Write times as 50ms, sizes as 100MB, rates as 40MB/s. A stage "
    "without a time counts as taking none."
)

_TIMES = {
    "first_byte": "time from a request to the first byte of the answer",
    "decode": "time to decode a sample on one processor",
    "map": "time of a function that is called with each sample",
    "collate": "time to collate a batch",
    "step": "time of a training step",
}
_RATES = {
    "connection": "maximum rate of one connection",
    "link": "maximum rate of a rank: that of the machine's link, divided by its ranks",
}
_COUNTS = {
    "concurrency": (1, "calls of --map at a time, on threads (default: 1)"),
    "ranks": (1, "number of ranks, which train in step (default: 1)"),
    "num_workers": (0, "workers of each rank (default: 0)"),
    "lanes": (None, "number of lanes (default: one for each worker of each rank)"),
    "batch_size": (64, "samples per batch (default: 64)"),
    "shuffle": (0, "size of the shuffle window in samples (default: 0, no shuffle)"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("urls", nargs="*", metavar="URL", help="shards that have an index, as for from_urls")
    add_format(parser)
    parser.add_argument("-m", "--index", help="path or URL of the index, if it is not beside the shards")
    add_stores(parser)
    shards = parser.add_argument_group("shards, if none are named")
    shards.add_argument("--shards", type=int, metavar="N", help="number of shards")
    shards.add_argument("--shard-size", metavar="SIZE", help="stored size of each shard")
    shards.add_argument("--shard-samples", type=int, metavar="N", help="number of samples in each shard")
    parser.add_argument(
        "--indexed", action="store_true", help="cut lanes to equal lengths, as for shards with an index"
    )
    times = parser.add_argument_group("times and rates")
    for names, metavar in ((_TIMES, "TIME"), (_RATES, "RATE")):
        for name, meaning in names.items():
            times.add_argument(_option(name), metavar=metavar, help=meaning)
    loader = parser.add_argument_group("the loaders")
    for name, (default, meaning) in _COUNTS.items():
        loader.add_argument(_option(name), type=int, default=default, metavar="N", help=meaning)
    loader.add_argument(
        "--memory-limit", metavar="SIZE", help="memory limit of a rank (default: that of DataLoader)"
    )
    resize = parser.add_argument_group("a resize")
    resize.add_argument(
        "--resize-to", type=int, metavar="RANKS", help="stop the pass, and continue with this many ranks"
    )
    resize.add_argument(
        "--at",
        type=float,
        default=0.5,
        metavar="FRACTION",
        help="part of the epoch before the stop (default: 0.5)",
    )


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def run(asked: argparse.Namespace) -> int:
    planned = _planned_run(asked)
    outcome = simulate(planned)
    resized = None if asked.resize_to is None else simulate_resize(planned, asked.resize_to, asked.at)
    if asked.json:
        print_json({**outcome.as_dict(), "resized": None if resized is None else resized.as_dict()})
        return 0
    _print(planned, outcome)
    if resized is not None:
        _print_resized(planned, resized)
    return 0


# --- arguments ---


def _planned_run(asked: argparse.Namespace) -> PlannedRun:
    given = {name: value for name, value in vars(asked).items() if value is not None}
    options: dict[str, Any] = {name: given[name] for name in _COUNTS if name in given}
    for name in _TIMES.keys() & given.keys():
        options[f"{name}_s"] = parse_seconds(_option(name), given[name])
    for name in _RATES.keys() & given.keys():
        options[f"{name}_bytes_s"] = parse_rate(_option(name), given[name])
    if asked.memory_limit is not None:
        options["memory_limit"] = memory_bytes(asked.memory_limit)
    return PlannedRun(**_shards_of(asked), **options)


def _shards_of(asked: argparse.Namespace) -> dict[str, Any]:
    """The arguments of a planned run for its shards."""
    made_up = {
        "--shards": asked.shards, "--shard-size": asked.shard_size, "--shard-samples": asked.shard_samples
    }  # fmt: skip
    missing = [name for name, value in made_up.items() if value is None]
    if asked.urls:
        if len(missing) < len(made_up):
            raise ValueError(f"expected URLs of shards or {', '.join(made_up)}, but got both")
        return _known_shards(asked)
    if missing:
        raise ValueError(
            f"expected URLs of shards with an index, or {', '.join(made_up)}; missing: {', '.join(missing)}"
        )
    if asked.shards < 1 or asked.shard_samples < 1:
        raise ValueError("--shards and --shard-samples should be 1 or more")
    return {
        "shard_bytes": np.full(asked.shards, parse_bytes("--shard-size", asked.shard_size)),
        "shard_samples": np.full(asked.shards, asked.shard_samples),
        "is_indexed": asked.indexed,
    }


def _known_shards(asked: argparse.Namespace) -> dict[str, Any]:
    shards = open_shards(asked, index=asked.index)
    checks = shards.checks
    if missing := len(shards.urls) - checks.count_of(Known.SAMPLES):
        raise ValueError(
            f"no index has the number of samples of {missing} of the {len(shards.urls)} shards: make one "
            "with asyncloader index, name it with --index, or pass --shards, --shard-size and --shard-samples"
        )
    if missing := checks.count_of(Known.NO_SIZE):
        raise ValueError(
            f"the index lacks the length of {missing} of the {len(shards.urls)} shards, which are "
            "compressed: pass --shards, --shard-size and --shard-samples"
        )
    return {
        "shard_bytes": checks.size_bytes,
        "shard_samples": checks.samples,
        "is_indexed": checks.is_indexed or asked.indexed,
    }


# --- output ---


def _print(planned: PlannedRun, outcome: Outcome) -> None:
    print_lines(
        f"{counted(len(planned.shards[0]), 'shard')}, {size_of(planned.size_bytes)} in all, "
        f"{counted(planned.samples, 'sample')}; {counted(planned.ranks, 'rank')} with "
        f"{counted(planned.num_workers, 'worker')} each, {counted(planned.lane_count, 'lane')}"
    )
    rows = _rows_of(planned, outcome)
    if planned.is_indexed:
        other = f"without an index {_between(outcome.lane_samples_whole)}"
    else:
        other = f"with an index {_between(outcome.lane_samples_indexed)}"
    rows.append(("lanes", f"{_between(outcome.lane_samples)} samples each; {other}"))
    if left := outcome.undelivered_samples:
        rows.append(("left over", f"{counted(left, 'sample')} are not delivered: lanes are not equal"))
    print_table(rows)


def _print_resized(planned: PlannedRun, resized: Resized) -> None:
    print_lines(
        f"stopped after {counted(resized.samples_before, 'sample')}, "
        f"continued with {counted(resized.ranks, 'rank')}"
    )
    print_table(
        [
            ("read again", f"about {size_of(resized.read_again_bytes)}"),
            ("left", f"{_between(resized.rank_samples_left)} samples for each rank"),
            *_rows_of(planned, resized.rest),
        ]
    )


def _rows_of(planned: PlannedRun, outcome: Outcome) -> list[tuple[str, str]]:
    """The speed and the bottleneck of a pass."""
    rate, first_s, elapsed_s = outcome.samples_per_s, outcome.first_batch_s, outcome.elapsed_s
    if rate is None or first_s is None or elapsed_s is None or outcome.wait_share is None:
        of_all = ", ".join(map(_option, (*_TIMES, *_RATES)))
        return [("throughput", f"unknown: pass the time of at least one stage: {of_all}")]
    stages = [f"{stage} {seconds * 1000:,.3g} ms" for stage, seconds in outcome.stages_s.items() if seconds]
    of_batch = f"; time per batch of a rank: {', '.join(stages)}" if stages else ""
    return [
        ("throughput", f"{rate:,.0f} samples/s, {size_of(rate * planned.sample_bytes)}/s of shards"),
        ("first batch", f"after {first_s:.2f} s; the whole pass takes {elapsed_s:,.1f} s"),
        ("waiting", f"{outcome.wait_share:.0%} of the time"),
        ("bottleneck", f"{outcome.limit}{of_batch}"),
    ]


def _between(balance: Balance) -> str:
    least, most = f"{balance.least:,}", f"{balance.most:,}"
    return least if least == most else f"{least} to {most}"
