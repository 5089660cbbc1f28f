"""Say who reads, and where from: options of stores, and URLs that are signed anew.

The datasets of object stores are only made here: nothing is asked of a server before the first batch.
"""

import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

import asyncloader as al
from asyncloader import testing

shards = "s3://corpus/train-{000..003}.tar"

# A public bucket: nothing is signed.
public = al.from_urls(shards, storage_options={"anonymous": True, "region": "eu-west-1"})

# Keys, region and endpoint of a profile in ~/.aws.
work = al.from_urls(shards, storage_options={"profile": "work"})

# MinIO, Ceph, R2 or another store that speaks S3.
minio = al.from_urls(
    shards,
    storage_options={
        "endpoint": "http://minio.internal:9000",
        "region": "us-east-1",
        "access_key_id": "me",
        "secret_access_key": "secret",
    },
)


def ask_vault():
    """Plain or `async`; called again when what it gave expires."""
    return {
        "access_key_id": "me",
        "secret_access_key": "secret",
        "token": None,
        "expires_at": datetime.now(UTC) + timedelta(hours=1),
    }


vault = al.from_urls(shards, storage_options={"credential_provider": ask_vault})

# A data set of the Hugging Face hub that needs a token.
gated = al.from_urls(
    "hf://datasets/owner/name@main/train-{000..003}.jsonl.zst", storage_options={"token": "hf_secret"}
)


def sign(url):
    """Plain or `async`; called with the URL that has expired."""
    return url.partition("?")[0] + "?signed=now"


with tempfile.TemporaryDirectory() as folder:
    with al.ShardWriter(Path(folder) / "train-{:03d}.jsonl", samples_per_shard=25) as writer:
        for number in range(100):
            writer.write({"number": number})

    # A web server that wants a header.
    with testing.serve(Path(folder)) as server:
        private = al.from_urls(
            f"{server.url}/train-{{000..003}}.jsonl",
            storage_options={"headers": {"Authorization": "Bearer secret"}},
        )
        samples = sum(len(batch["number"]) for batch in al.DataLoader(private, batch_size=10))
        tokens = {request.headers["authorization"] for request in server.requests}
    print(f"{samples} samples with {tokens}")

    # A server that refuses what was not signed just now, as a store does after an hour or a day.
    with testing.serve(Path(folder), [testing.RequireQuery("signed=now")]) as server:
        presigned = al.from_urls(
            [f"{server.url}/train-{number:03d}.jsonl?signed=yesterday" for number in range(4)], renew=sign
        )
        samples = sum(len(batch["number"]) for batch in al.DataLoader(presigned, batch_size=10))
    print(f"{samples} samples from URLs that had expired")
