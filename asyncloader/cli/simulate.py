"""``asyncloader simulate``: how fast a pass would go, without a byte read."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from ..quantity import bytes_text as size_of
from ..quantity import parse_bytes, parse_rate, parse_seconds
from .arguments import add_format, add_json, add_stores
from .printing import counted, print_json, print_lines, print_table

if TYPE_CHECKING:
    from ..tools.simulate import Balance, Outcome, PlannedRun, Resized

HELP = (
    "Work out how fast a pass would go, what its bottleneck would be, and how evenly it would be dealt, from "
    "the plan and from the times that are given. Of shards that are named only the index is read. Times are "
    "given as 50ms, sizes as 100MB, rates as 40MB/s. A time that is not given is left out."
)

_TIMES = {
    "first_byte": "from a request to its first byte",
    "decode": "to decode a sample, on one processor",
    "map": "of a function that is called with each sample",
    "collate": "to make a batch of its samples",
    "step": "of the training loop, for a batch",
}
_RATES = {
    "connection": "the most that one connection gets",
    "link": "the most that a rank gets: the link of a machine, divided by its ranks",
}
_COUNTS = {
    "concurrency": (1, "calls of --map at a time, on threads; 1"),
    "ranks": (1, "that train in step; 1"),
    "num_workers": (0, "of each rank; 0"),
    "lanes": (None, "one for each worker of each rank"),
    "batch_size": (64, "samples of a batch; 64"),
    "shuffle": (0, "in windows of so many samples; 0 for not at all"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "urls", nargs="*", metavar="URL", help="shards that have an index, as from_urls has them"
    )
    add_format(parser)
    parser.add_argument("-m", "--index", help="path or URL of it, if it is not beside them")
    add_stores(parser)
    shards = parser.add_argument_group("shards, where none are named")
    shards.add_argument("--shards", type=int, metavar="N", help="how many")
    shards.add_argument("--shard-size", metavar="SIZE", help="of each, as stored")
    shards.add_argument("--shard-samples", type=int, metavar="N", help="of each")
    parser.add_argument(
        "--indexed", action="store_true", help="cut lanes by an index, as is done where shards have one"
    )
    times = parser.add_argument_group("times and rates")
    for names, metavar in ((_TIMES, "TIME"), (_RATES, "RATE")):
        for name, told in names.items():
            times.add_argument(_option(name), metavar=metavar, help=told)
    loader = parser.add_argument_group("the loaders")
    for name, (default, told) in _COUNTS.items():
        loader.add_argument(_option(name), type=int, default=default, metavar="N", help=told)
    loader.add_argument("--memory-limit", metavar="SIZE", help="of a rank; by default as DataLoader's")
    resize = parser.add_argument_group("a resize")
    resize.add_argument(
        "--resize-to", type=int, metavar="RANKS", help="stop the pass, and go on with so many"
    )
    resize.add_argument(
        "--at", type=float, default=0.5, metavar="FRACTION", help="of the epoch, where it is stopped; 0.5"
    )
    add_json(parser)


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def run(asked: argparse.Namespace) -> int:
    from ..tools.simulate import simulate, simulate_resize

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


# --- what is asked for ---


def _planned_run(asked: argparse.Namespace) -> PlannedRun:
    from ..loader.options import memory_bytes
    from ..tools.simulate import PlannedRun

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
    """The shards, and whether they have an index, as a planned run takes them."""
    made_up = {
        "--shards": asked.shards, "--shard-size": asked.shard_size, "--shard-samples": asked.shard_samples
    }  # fmt: skip
    missing = [name for name, value in made_up.items() if value is None]
    if asked.urls:
        if len(missing) < len(made_up):
            raise ValueError(f"expected named shards or {', '.join(made_up)}, but got both")
        return _known_shards(asked)
    if missing:
        raise ValueError(
            f"expected shards that have an index, or what they are like: {', '.join(missing)} "
            f"{'is' if len(missing) == 1 else 'are'} missing"
        )
    if asked.shards < 1 or asked.shard_samples < 1:
        raise ValueError("--shards and --shard-samples should be 1 or more")
    import numpy as np

    return {
        "shard_bytes": np.full(asked.shards, parse_bytes("--shard-size", asked.shard_size)),
        "shard_samples": np.full(asked.shards, asked.shard_samples),
        "is_indexed": asked.indexed,
    }


def _known_shards(asked: argparse.Namespace) -> dict[str, Any]:
    from ..shards.expectations import Known
    from .arguments import open_shards

    shards = open_shards(asked, index=asked.index)
    checks = shards.checks
    if missing := len(shards.urls) - checks.count_of(Known.SAMPLES):
        raise ValueError(
            f"no index says how many samples are in {missing} of the {len(shards.urls)} shards: make one "
            "with asyncloader index, name it with --index, or say what shards are like with --shards, "
            "--shard-size and --shard-samples"
        )
    if missing := checks.count_of(Known.NO_SIZE):
        raise ValueError(
            f"the index does not say how long {missing} of the {len(shards.urls)} shards are, as they are "
            "compressed: say what they are like with --shards, --shard-size and --shard-samples"
        )
    return {
        "shard_bytes": checks.size_bytes,
        "shard_samples": checks.samples,
        "is_indexed": checks.is_indexed or asked.indexed,
    }


# --- what is printed ---


def _print(planned: PlannedRun, outcome: Outcome) -> None:
    print_lines(
        f"{counted(len(planned.shards[0]), 'shard')} of {size_of(planned.size_bytes)}, "
        f"{counted(planned.samples, 'sample')}; {counted(planned.ranks, 'rank')} of "
        f"{counted(planned.num_workers, 'worker')}, {counted(planned.lane_count, 'lane')}"
    )
    rows = _rows_of(planned, outcome)
    if planned.is_indexed:
        other = f"without an index {_between(outcome.lane_samples_whole)}"
    else:
        other = f"with an index {_between(outcome.lane_samples_indexed)}"
    rows.append(("lanes", f"{_between(outcome.lane_samples)} samples; {other}"))
    if outcome.undelivered_samples:
        rows.append(
            ("left", f"{counted(outcome.undelivered_samples, 'sample')} not delivered: lanes are not equal")
        )
    print_table(rows)


def _print_resized(planned: PlannedRun, resized: Resized) -> None:
    print_lines(
        f"stopped after {counted(resized.samples_before, 'sample')}; {counted(resized.ranks, 'rank')} go on"
    )
    print_table(
        [
            ("read again", f"about {size_of(resized.read_again_bytes)}"),
            ("left", f"{_between(resized.rank_samples_left)} samples of a rank"),
            *_rows_of(planned, resized.rest),
        ]
    )


def _rows_of(planned: PlannedRun, outcome: Outcome) -> list[tuple[str, str]]:
    """How fast a pass goes, and why."""
    rate, first_s, elapsed_s = outcome.samples_per_s, outcome.first_batch_s, outcome.elapsed_s
    if rate is None or first_s is None or elapsed_s is None or outcome.wait_share is None:
        of_all = ", ".join(map(_option, (*_TIMES, *_RATES)))
        return [("throughput", f"not known without a time of any stage: give at least one of {of_all}")]
    stages = [f"{stage} {seconds * 1000:,.3g} ms" for stage, seconds in outcome.stages_s.items() if seconds]
    return [
        ("throughput", f"{rate:,.0f} samples/s, {size_of(rate * planned.sample_bytes)}/s of shards"),
        ("first batch", f"{first_s:.2f} s; the whole pass {elapsed_s:,.1f} s"),
        ("wait", f"{outcome.wait_share:.0%} of the time"),
        ("bottleneck", f"{outcome.limit}; a batch of a rank takes {', '.join(stages)}"),
    ]


def _between(balance: Balance) -> str:
    least, most = f"{balance.least:,}", f"{balance.most:,}"
    return least if least == most else f"{least} to {most}"
