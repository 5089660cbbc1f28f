"""Stream a private bucket by presigned URLs that are signed anew when the server refuses them, with workers.

The bucket is in a server that this program starts; that needs `pip install "moto[server]"`.
"""

import logging
import tempfile
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import boto3
from moto.server import ThreadedMotoServer

import asyncloader as al


def connect(endpoint: str) -> Any:
    keys = {"aws_access_key_id": "me", "aws_secret_access_key": "secret"}
    return boto3.Session().client("s3", endpoint_url=endpoint, region_name="us-east-1", **keys)


class Signer:
    """Signs URLs anew. It travels to workers without its client, and makes one where it first needs it."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self.client: Any = None

    def __call__(self, url: str) -> str:
        if self.client is None:
            self.client = connect(self.endpoint)
        bucket, _, key = urlsplit(url).path.lstrip("/").partition("/")
        named = {"Bucket": bucket, "Key": unquote(key)}
        signed: str = self.client.generate_presigned_url("get_object", Params=named, ExpiresIn=3600)
        return signed

    def __reduce__(self) -> tuple[type, tuple[str]]:
        return Signer, (self.endpoint,)


logging.getLogger("werkzeug").setLevel(logging.ERROR)  # its log of requests
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
host, port = server.get_host_and_port()
endpoint = f"http://{host}:{port}"

client = connect(endpoint)
client.create_bucket(Bucket="corpus")
with tempfile.TemporaryDirectory() as folder:
    with al.ShardWriter(Path(folder) / "train-{:03d}.jsonl", samples_per_shard=25) as writer:
        for number in range(100):
            writer.write({"number": number})
    for path in Path(folder).glob("*.jsonl"):
        client.upload_file(str(path), "corpus", path.name)
client.close()

# Not signed at all, these URLs are refused from the start, as yesterday's would be.
urls = f"{endpoint}/corpus/train-{{000..003}}.jsonl"
dataset = al.from_urls(urls, renew=Signer(endpoint))
for workers in (0, 2):
    numbers = [
        n for batch in al.DataLoader(dataset, 10, num_workers=workers) for n in batch["number"].tolist()
    ]
    assert sorted(numbers) == list(range(100))
    print(f"{len(numbers)} samples with {workers} workers")
try:
    list(al.DataLoader(al.from_urls(urls), 10))
except al.StoreError as error:
    print(f"without renew: {error.status}")
server.stop()
