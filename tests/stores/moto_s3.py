"""moto's S3 server, and a client of another make that fills it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

KEYS = {"access_key_id": "AKIASENTINEL", "secret_access_key": "SENTINEL", "region": "us-east-1"}


class S3:
    """A running server with the bucket ``corpus``."""

    def __init__(self, url: str) -> None:
        import boto3

        self.url = url
        self.options = {"endpoint": url, **KEYS}
        self.client: Any = boto3.client(
            "s3",
            endpoint_url=url,
            region_name="us-east-1",
            aws_access_key_id=KEYS["access_key_id"],
            aws_secret_access_key=KEYS["secret_access_key"],
        )

    def put(self, key: str, content: bytes, **options: str) -> None:
        self.client.put_object(Bucket="corpus", Key=key, Body=content, **options)

    def check_signatures(self, after_requests: str) -> None:
        import requests

        requests.post(f"{self.url}/moto-api/reset-auth", data=after_requests, timeout=5).raise_for_status()


@contextmanager
def serve_s3() -> Iterator[S3]:
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        _, port = server.get_host_and_port()
        s3 = S3(f"http://127.0.0.1:{port}")
        s3.client.create_bucket(Bucket="corpus")
        yield s3
        s3.client.close()
    finally:
        server.stop()
