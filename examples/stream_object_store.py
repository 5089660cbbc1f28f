"""Stream every shard below a URL, and say how fast that was and what it took.

    python examples/stream_object_store.py s3://bucket/prefix/ --profile work --cache-dir /scratch/shards

Without a URL it streams from a bucket of its own, in a server that it starts on this machine; that needs
`pip install "moto[server]"`.
"""

import argparse
import logging
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import asyncloader as al


def stream(url: str, options: dict[str, Any], cache_dir: str | None, workers: int) -> None:
    dataset = al.from_urls(url, storage_options=options, cache_dir=cache_dir).shuffle(1000, seed=0)
    # collate_fn=list: a batch is a list, so samples do not have to stack.
    with al.DataLoader(dataset, 64, num_workers=workers, collate_fn=list, progress=True) as loader:
        for _ in loader:
            pass  # train
        seen = loader.statistics
        samples_s, mb_s = seen.samples / seen.elapsed_s, seen.size_bytes / seen.elapsed_s / 1e6
    print(f"{seen.samples:,} samples, {samples_s:,.0f} samples/s, {mb_s:,.1f} MB/s")
    print(seen.network)


@contextmanager
def own_bucket() -> Iterator[tuple[str, dict[str, Any]]]:
    """The URL of four shards of 25 samples, and the options that open them."""
    import boto3
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # its log of requests
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    endpoint = f"http://{host}:{port}"
    keys = {"aws_access_key_id": "me", "aws_secret_access_key": "secret"}
    client = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1", **keys)
    client.create_bucket(Bucket="corpus")
    with tempfile.TemporaryDirectory() as folder:
        with al.ShardWriter(Path(folder) / "train-{:03d}.tar", samples_per_shard=25) as writer:
            for number in range(100):
                writer.write({"__key__": f"{number:04d}", "txt": f"sample {number}" * 1000})
        for path in Path(folder).iterdir():  # the index too: it is found there, and shards held against it
            client.upload_file(str(path), "corpus", f"train/{path.name}")
    client.close()
    try:
        yield "s3://corpus/train/", {"endpoint": endpoint, "region": "us-east-1", **keys}
    finally:
        server.stop()


parser = argparse.ArgumentParser(description="Stream every shard below a URL.")
parser.add_argument("url", nargs="?", help="such as s3://bucket/prefix/; without it, a bucket of our own")
parser.add_argument("--endpoint", help="of a store that is not Amazon's, Google's or Azure's own")
parser.add_argument("--anonymous", action="store_true", help="sign nothing: the bucket is public")
parser.add_argument("--profile", help="of ~/.aws, which has the credentials")
parser.add_argument("--cache-dir", help="keep the shards in this folder")
parser.add_argument("--workers", type=int, default=0)
asked = parser.parse_args()

if asked.url is None:
    with own_bucket() as (url, options):
        stream(url, options, asked.cache_dir, asked.workers)
else:
    named = {"endpoint": asked.endpoint, "anonymous": asked.anonymous, "profile": asked.profile}
    given = {name: value for name, value in named.items() if value}
    stream(asked.url, given, asked.cache_dir, asked.workers)
