"""The table of what is run: workloads, who takes part in each, and what is wanted of it."""

from __future__ import annotations

from dataclasses import replace

from .rows import Goal, Row, Workload, limits_of, peers_among, rows_of

__all__ = ["WORKLOADS"]

OURS, TORCH, WEB, LIT, NODES = (
    f"over_{name}" for name in ("asyncloader", "torch", "webdataset", "litdata", "nodes")
)
#: Rows that goals name.
OURS_0, OURS_2 = "asyncloader, 0 workers", "asyncloader, 2 workers"
TARFILE, REQUESTS = "`DataLoader`, tarfile", "`DataLoader`, requests, tarfile"
#: Two round trips of 50 ms, and a part of 8 MiB at 40 MB/s.
FIRST_FAR_S = 2 * 0.05 + (8 << 20) / 40e6


def tar_rows(place: str, ours: tuple[int, ...], theirs: tuple[int, ...]) -> tuple[Row, ...]:
    return (
        *rows_of(OURS, "tar", *ours, place=place),
        *rows_of(TORCH, "tar", *theirs, name=TARFILE if place == "local" else REQUESTS, place=place),
        *rows_of(WEB, "tar", *theirs, place=place),
        *rows_of(LIT, "tar", *theirs, place=place),
        *rows_of(NODES, "tar", *theirs, place=place),
    )


_LOCAL = tar_rows("local", (0, 2), (0, 2))
_HTTP = tar_rows("http", (0, 2), (0, 2))
_FAR = tar_rows("50", (0, 2), (8,))
_IMAGES = (
    Row(OURS, "images", "asyncloader", threads=2),
    *(row for loader in (OURS, TORCH, WEB, LIT, NODES) for row in rows_of(loader, "images", 2)),
)
_TOKENS = (
    *rows_of(OURS, "parquet", 0, 2, name="asyncloader, Parquet"),
    *rows_of(OURS, "lines", 0, 2, name="asyncloader, JSON Lines"),
    *rows_of(TORCH, "parquet", 0, 2, name="`DataLoader`, pyarrow"),
    *rows_of(TORCH, "lines", 0, 2, name="`DataLoader`, zstandard, json"),
    *rows_of(LIT, "parquet", 0, 2),
    *rows_of(NODES, "parquet", 2, name="torchdata nodes, pyarrow"),
)
_TINY_TAR = (
    *rows_of(OURS, "tiny_tar", 0),
    *rows_of(TORCH, "tiny_tar", 0, name=TARFILE),
    *rows_of(WEB, "tiny_tar", 0),
    *rows_of(LIT, "tiny_tar", 0),
    *rows_of(NODES, "tiny_tar", 2),
)
_TINY_LINES = (
    *rows_of(OURS, "tiny_lines", 0),
    *rows_of(TORCH, "tiny_lines", 0, name="`DataLoader`, json"),
    *rows_of(NODES, "tiny_lines", 2, name="torchdata nodes, json"),
)
_ITEMS = (*rows_of(OURS, "map_style", 0, 2), *rows_of(TORCH, "map_style", 0, 2))
_RESUME = (
    *rows_of(OURS, "tar", 0, 2, place="http"),
    *rows_of("over_stateful", "tar", 0, 2, place="http"),
    *rows_of(LIT, "tar", 0, 2, place="http"),
    *rows_of(NODES, "tar", 2, place="http"),
)
_DISTANCES = tuple(Row(OURS, "tar", f"asyncloader, {ms} ms", place=ms, times=4) for ms in ("5", "50", "200"))
_MUCH = tuple(
    replace(row, name=f"asyncloader, {times} GB", times=times)
    for times in (1, 10)
    for row in rows_of(OURS, "tar", 0, 2, place="http")
)

WORKLOADS = {
    "tar-local": Workload(
        "Tar on disk",
        "1 GB in 32 shards in the page cache: samples of 100 KB as bytes, in batches of 64.",
        "bodies",
        (*_LOCAL, *limits_of("local", "page_cache", "memcpy")),
        (
            Goal(OURS_0, "samples_s", 3.0, (f"{TARFILE}, 0 workers",)),
            Goal(OURS_0, "first_s", 2.0, (f"{TARFILE}, 0 workers",)),
            Goal(OURS_2, "samples_s", 1.5, peers_among(_LOCAL, 2)),
            Goal(OURS_0, "peak_mb", 1.0, (f"{TARFILE}, 0 workers",), extra=150.0),
            Goal(OURS_2, "peak_mb", 1.0, peers_among(_LOCAL, 2)),
        ),
    ),
    "tar-http": Workload(
        "Tar over HTTP",
        "The same shards from nginx on loopback.",
        "bodies",
        (*_HTTP, *limits_of("http", "curl", "aiohttp_parts", "obstore_parts", "aiohttp_tar", "obstore_tar")),
        (
            Goal(OURS_0, "samples_s", 2.5, peers_among(_HTTP, 0)),
            Goal(OURS_2, "samples_s", 2.5, peers_among(_HTTP, 2)),
            Goal(OURS_0, "samples_s", 0.9, ("bare aiohttp tar, no loader", "bare obstore tar, no loader")),
            Goal(OURS_0, "peak_mb", 1.0, (f"{REQUESTS}, 0 workers",), extra=150.0),
            Goal(OURS_2, "peak_mb", 1.0, peers_among(_HTTP, 2)),
        ),
    ),
    "tar-far": Workload(
        "Tar from far away",
        "The same shards from a server that waits 50 ms before each answer and sends at most 40 MB/s on a\n"
        "connection. asyncloader has 0 or 2 workers, the others 8.",
        "bodies",
        _FAR,
        (
            Goal(OURS_0, "samples_s", 2.0, peers_among(_FAR)),
            Goal(OURS_2, "samples_s", 2.0, peers_among(_FAR)),
            Goal(OURS_0, "first_s", FIRST_FAR_S),
            Goal(OURS_0, "peak_mb", 1.0, peers_among(_FAR)),
            Goal(OURS_2, "peak_mb", 1.0, peers_among(_FAR)),
        ),
    ),
    "distance": Workload(
        "Near and far",
        "asyncloader alone, 4 GB from that server with 5, 50 and 200 ms.",
        "bodies",
        _DISTANCES,
        (Goal(_DISTANCES[2].label, "samples_s", 0.8, (_DISTANCES[0].label,)),),
    ),
    "images": Workload(
        "Images",
        "3,200 JPEGs of 100 KB from local tar, decoded with Pillow, resized to 224 by 224 and stacked.",
        "images",
        _IMAGES,
        tuple(
            Goal(row, "samples_s", 1.0, peers_among(_IMAGES)) for row in ("asyncloader, 2 threads", OURS_2)
        ),
    ),
    "tokens": Workload(
        "Padded tokens",
        "120,000 sequences of int32 on local disk with lognormal lengths (mean 200, from 16 to 2,048), in\n"
        "batches of 64 padded to the longest. JSON Lines are compressed with zstd.",
        "tokens",
        _TOKENS,
        (
            Goal("asyncloader, Parquet, 0 workers", "samples_s", 3.0, peers_among(_TOKENS)),
            Goal(
                "asyncloader, JSON Lines, 0 workers",
                "samples_s",
                2.0,
                ("`DataLoader`, zstandard, json, 0 workers",),
            ),
            *(
                Goal(f"{name}, 2 workers", "steady_samples_s", 1.0, (f"{name}, 0 workers",))
                for name in ("asyncloader, Parquet", "asyncloader, JSON Lines")
            ),
        ),
    ),
    "tiny-tar": Workload(
        "Tiny samples in tar",
        "100,000 samples on local disk, a number and a label each, in lists of 256.",
        "tiny tar",
        _TINY_TAR,
        (Goal(OURS_0, "samples_s", 3.0, (f"{TARFILE}, 0 workers",)),),
    ),
    "tiny-lines": Workload(
        "Tiny samples in JSON Lines",
        "800,000 lines on local disk, a number and a label each, as lists of 256 dicts.",
        "tiny lines",
        _TINY_LINES,
        (Goal(OURS_0, "samples_s", 1.5, ("`DataLoader`, json, 0 workers",)),),
    ),
    "map-style": Workload(
        "Map-style datasets",
        "1,000,000 items in memory, an int and a label, in batches of 256 in order, with default collation.",
        1_000_000,
        _ITEMS,
        (Goal(OURS_2, "samples_s", 1.5, ("`DataLoader`, 2 workers",)),),
    ),
    "resume": Workload(
        "Resuming in the middle",
        "Tar over HTTP, stopped after half of the samples; another process reads the rest.",
        "bodies",
        _RESUME,
        (
            Goal(OURS_0, "first_s", 1.0, peers_among(_RESUME, 0)),
            Goal(OURS_2, "first_s", 1.0, peers_among(_RESUME, 2)),
        ),
        figure="first_s",
        resumes=True,
    ),
    "much": Workload(
        "Ten times as much",
        "1 and 10 GB from nginx on loopback. The ratio is that of peak memory.",
        "bodies",
        _MUCH,
        tuple(
            Goal(ten.label, "peak_mb", 1.1, (one.label,))
            for one, ten in zip(_MUCH[:2], _MUCH[2:], strict=True)
        ),
        figure="peak_mb",
    ),
}
