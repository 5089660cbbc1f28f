"""``asyncloader simulate``: how a pass would go, without a byte read."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from ..quantity import bytes_text as size_of
from ..quantity import parse_bytes, parse_rate, parse_seconds
from .arguments import add_format, add_json, add_stores
from .printing import counted, print_json, print_lines, print_table

if TYPE_CHECKING:
    from ..simulate import Balance, Outcome, Resized, Setting, ShardSize

HELP = (
    "Play a pass by the loader's own rules over a model of the link, of the work and of the training step: "
    "how fast it goes, what limits it, how evenly it is dealt, what it holds in memory. Of shards that are "
    "named only the manifest or index.json is read. Times are given as 50ms, sizes as 100MB, rates as 40MB/s."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    _add_shards(parser)
    link = parser.add_argument_group("the link")
    link.add_argument("--first-byte", default="0s", metavar="TIME", help="from a request to its first byte")
    link.add_argument("--connection", metavar="RATE", help="the most that one connection gets")
    link.add_argument("--link", metavar="RATE", help="the most that all connections of a machine get")
    work = parser.add_argument_group("the work")
    work.add_argument("--decode", default="0s", metavar="TIME", help="to decode a sample, on one processor")
    work.add_argument("--map", metavar="TIME", help="of a function that is called with each sample")
    work.add_argument(
        "--concurrency", type=int, default=1, metavar="N", help="calls of it at a time, on threads"
    )
    work.add_argument("--collate", default="0s", metavar="TIME", help="to make a batch of its samples")
    work.add_argument(
        "--decoded-size", metavar="SIZE", help="of a sample in a batch; as large as in its shard"
    )
    work.add_argument("--step", default="0s", metavar="TIME", help="of the training loop, for a batch")
    loader = parser.add_argument_group("the loaders")
    loader.add_argument("--ranks", type=int, default=1, metavar="N", help="that train in step; 1")
    loader.add_argument("--ranks-per-machine", type=int, metavar="N", help="which share its link; all")
    loader.add_argument("--num-workers", type=int, default=0, metavar="N", help="of each rank; 0")
    loader.add_argument("--lanes", type=int, metavar="N", help="one for each worker of each rank")
    loader.add_argument("--batch-size", type=int, default=64, metavar="N", help="samples of a batch; 64")
    loader.add_argument(
        "--drop-last", action="store_true", help="leave out a lane's last batch if it is short"
    )
    loader.add_argument(
        "--prefetch-factor", type=int, default=2, metavar="N", help="batches a worker is ahead; 2"
    )
    loader.add_argument("--memory-limit", metavar="SIZE", help="of a rank; by default as DataLoader's")
    loader.add_argument(
        "--shuffle", type=int, default=0, metavar="WINDOW", help="in windows of so many samples"
    )
    resize = parser.add_argument_group("a resize")
    resize.add_argument(
        "--resize-to", type=int, metavar="RANKS", help="stop the pass, and go on with so many"
    )
    resize.add_argument(
        "--at", type=float, default=0.5, metavar="FRACTION", help="of the epoch, where it is stopped; 0.5"
    )
    add_json(parser)


def _add_shards(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "urls", nargs="*", metavar="URL", help="shards that have a manifest, as from_urls has them"
    )
    add_format(parser)
    parser.add_argument("-m", "--manifest", help="path or URL of it, if it is not beside them")
    add_stores(parser)
    shards = parser.add_argument_group("shards, where none are named")
    shards.add_argument("--shards", type=int, metavar="N", help="how many")
    shards.add_argument("--shard-size", metavar="SIZE", help="of each, as stored")
    shards.add_argument("--shard-samples", type=int, metavar="N", help="of each")
    parser.add_argument(
        "--index", action="store_true", help="cut lanes by an index; so it is where shards have one"
    )


def run(asked: argparse.Namespace) -> int:
    from ..simulate import simulate, simulate_resize

    setting = _setting_of(asked)
    outcome = simulate(setting)
    resized = None if asked.resize_to is None else simulate_resize(setting, asked.resize_to, asked.at)
    if asked.json:
        print_json({**outcome.as_dict(), "resized": None if resized is None else resized.as_dict()})
        return 0
    _print(setting, outcome)
    if resized is not None:
        _print_resized(resized)
    return 0


# --- what is asked for ---


def _setting_of(asked: argparse.Namespace) -> Setting:
    from ..plan.memory import DEFAULT_LIMIT_BYTES
    from ..simulate import Link, Operator, Setting

    rates = {"connection_bytes_s": asked.connection, "machine_bytes_s": asked.link}
    names = {"connection_bytes_s": "--connection", "machine_bytes_s": "--link"}
    given = {name: parse_rate(names[name], rate) for name, rate in rates.items() if rate is not None}
    link = Link(parse_seconds("--first-byte", asked.first_byte), **given)
    operators = []
    if asked.map is not None:
        operators = [Operator(parse_seconds("--map", asked.map), asked.concurrency)]
    elif asked.concurrency != 1:
        raise ValueError("--concurrency is that of --map, which says how long a call takes")
    shards, is_indexed = _shards_of(asked)
    decoded, limit = asked.decoded_size, asked.memory_limit
    return Setting(
        shards=shards,
        link=link,
        ranks=asked.ranks,
        ranks_per_machine=asked.ranks if asked.ranks_per_machine is None else asked.ranks_per_machine,
        num_workers=asked.num_workers,
        lanes=asked.lanes,
        is_indexed=is_indexed or asked.index,
        seed=0 if asked.shuffle else None,
        window=asked.shuffle,
        decode_s=parse_seconds("--decode", asked.decode),
        operators=operators,
        collate_s=parse_seconds("--collate", asked.collate),
        decoded_bytes=None if decoded is None else parse_bytes("--decoded-size", decoded),
        batch_size=asked.batch_size,
        drop_last=asked.drop_last,
        prefetch_factor=asked.prefetch_factor,
        memory_limit=DEFAULT_LIMIT_BYTES if limit is None else _memory(limit),
        step_s=parse_seconds("--step", asked.step),
    )


def _memory(limit: str) -> int:
    from ..options import memory_bytes

    return memory_bytes(limit)


def _shards_of(asked: argparse.Namespace) -> tuple[list[ShardSize], bool]:
    """The shards, and whether they have an index."""
    made_up = {
        "--shards": asked.shards, "--shard-size": asked.shard_size, "--shard-samples": asked.shard_samples
    }  # fmt: skip
    missing = [name for name, value in made_up.items() if value is None]
    if asked.urls:
        if len(missing) < len(made_up):
            raise ValueError(f"shards are named, or made up by {', '.join(made_up)}; not both")
        return _known_shards(asked)
    if missing:
        raise ValueError(
            f"name shards that have a manifest, or say what they are like: {', '.join(missing)} "
            f"{'is' if len(missing) == 1 else 'are'} missing"
        )
    if asked.shards < 1 or asked.shard_samples < 1:
        raise ValueError("--shards and --shard-samples should be 1 or more")
    from ..simulate import ShardSize

    size = parse_bytes("--shard-size", asked.shard_size)
    return [ShardSize(size, asked.shard_samples)] * asked.shards, False


def _known_shards(asked: argparse.Namespace) -> tuple[list[ShardSize], bool]:
    from ..manifest.expectations import Known
    from ..simulate import ShardSize
    from .recipe import open_shards

    shards = open_shards(asked, manifest=asked.manifest)
    checks = shards.checks
    if missing := len(shards.urls) - checks.count_of(Known.SAMPLES):
        raise ValueError(
            f"no manifest says how many samples are in {missing} of the {len(shards.urls)} shards: make one "
            "with asyncloader index, name it with --manifest, or say what shards are like with --shards, "
            "--shard-size and --shard-samples"
        )
    if missing := checks.count_of(Known.NO_SIZE):
        raise ValueError(
            f"the index does not say how long {missing} of the {len(shards.urls)} shards are, as they are "
            "compressed: say what they are like with --shards, --shard-size and --shard-samples"
        )
    sizes = zip(checks.size_bytes.tolist(), checks.samples.tolist(), strict=True)
    return [ShardSize(size, samples) for size, samples in sizes], checks.is_indexed


# --- what is said ---


def _print(setting: Setting, outcome: Outcome) -> None:
    sample_bytes = setting.size_bytes / max(setting.samples, 1)
    first = "none" if outcome.first_batch_s is None else f"{outcome.first_batch_s:.2f} s"
    print_lines(
        f"{counted(len(setting.shards), 'shard')} of {size_of(setting.size_bytes)}, "
        f"{counted(setting.samples, 'sample')}; {counted(setting.ranks, 'rank')} of "
        f"{counted(setting.num_workers, 'worker')}, {counted(setting.lane_count, 'lane')}"
    )
    rank = outcome.rank_samples_per_s
    rows = [
        ("throughput", f"{outcome.samples_per_s:,.0f} samples/s, {_between(rank)} of a rank"),
        ("", f"{size_of(outcome.samples_per_s * sample_bytes)}/s of shards"),
        ("first batch", f"{first}; the whole pass {outcome.elapsed_s:,.1f} s"),
        ("wait", f"{outcome.wait_share:.0%} of the time"),
        ("limit", outcome.told),
        ("lanes", f"{_between(outcome.lane_samples)} samples{_other_balance(setting, outcome)}"),
        ("memory", f"{size_of(outcome.peak_bytes)} of a rank at most"),
    ]
    if outcome.undelivered_samples:
        rows.append(
            ("left", f"{counted(outcome.undelivered_samples, 'sample')} not delivered: lanes are not equal")
        )
    print_table(rows)


def _other_balance(setting: Setting, outcome: Outcome) -> str:
    if setting.is_indexed:
        return f"; without an index {_between(outcome.lane_samples_whole)}"
    return f"; with an index {_between(outcome.lane_samples_indexed)}"


def _print_resized(resized: Resized) -> None:
    rest = resized.rest
    print_lines(
        f"stopped after {counted(resized.samples_before, 'sample')}; {counted(resized.ranks, 'rank')} go on"
    )
    first = "none" if rest.first_batch_s is None else f"{rest.first_batch_s:.2f} s"
    print_table(
        [
            ("read again", size_of(resized.read_again_bytes)),
            ("left", f"{_between(resized.rank_samples_left)} samples of a rank"),
            ("throughput", f"{rest.samples_per_s:,.0f} samples/s; first batch {first}"),
            ("limit", rest.told),
        ]
    )


def _between(balance: Balance) -> str:
    least, most = f"{balance.least:,.0f}", f"{balance.most:,.0f}"
    return least if least == most else f"{least} to {most}"
