"""Stream from storage that speaks S3, wherever it is: here from moto's server on this machine.

Needs `moto[server]`, which brings boto3. With a bucket of yours, only what follows `dataset =` is needed.
"""

import tempfile
from pathlib import Path

import boto3
from moto.server import ThreadedMotoServer

import asyncloader as al

folder = Path(tempfile.mkdtemp())
with al.ShardWriter(folder / "train-{:03d}.tar", max_samples=25) as writer:
    for number in range(100):
        writer.write({"__key__": f"{number:04d}", "txt": f"sample {number}", "cls": number % 3})

server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
server.start()
host, port = server.get_host_and_port()
endpoint = f"http://{host}:{port}"
keys = {"aws_access_key_id": "me", "aws_secret_access_key": "secret"}
client = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1", **keys)
client.create_bucket(Bucket="corpus")
for shard in writer.shards:
    client.upload_file(shard.path, "corpus", Path(shard.path).name)

dataset = al.from_urls(
    "s3://corpus/train-{000..003}.tar",
    storage_options={
        "endpoint": endpoint,  # http:// ones too; leave it out for Amazon's own
        "region": "us-east-1",
        "access_key_id": "me",
        "secret_access_key": "secret",
    },
).decode()
with al.DataLoader(dataset, batch_size=10, num_workers=2) as loader:
    labels = [label for batch in loader for label in batch["cls"].tolist()]

server.stop()
assert sorted(labels) == sorted(number % 3 for number in range(100))
print(f"{len(labels)} samples from {len(writer.shards)} shards of the bucket")
