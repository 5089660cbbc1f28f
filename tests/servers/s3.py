"""What a client of a server that speaks S3 needs to know."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["S3Server"]


@dataclass(frozen=True)
class S3Server:
    """A running server and an account of it.

    Attributes:
        endpoint: Its base URL, without a slash at the end.
    """

    endpoint: str
    access_key_id: str
    secret_access_key: str
    region: str = "us-east-1"

    @property
    def options(self) -> dict[str, str]:
        """As ``storage_options``."""
        return {
            "endpoint": self.endpoint,
            "region": self.region,
            "access_key_id": self.access_key_id,
            "secret_access_key": self.secret_access_key,
        }

    def client(self) -> Any:
        """A client of another make, to fill the server and sign URLs; whoever takes it closes it."""
        import boto3
        from botocore.config import Config

        # Swift is older than the checksums that boto3 now sends by default, as trailers that it stores.
        config = Config(
            signature_version="s3v4",
            s3={"addressing_style": "path"},
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
        )
        return boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            region_name=self.region,
            aws_access_key_id=self.access_key_id,
            aws_secret_access_key=self.secret_access_key,
            config=config,
        )
