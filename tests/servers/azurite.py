"""Azurite: Azure's blob storage in memory, with its account keys and signed URLs."""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import urlencode

from .process import find_program, reserve_port, run_server

__all__ = ["AzureServer", "run_azurite"]

_ROOT = Path(__file__).parents[2]

# Keys are 64 bytes in base64, which this is.
_ACCOUNT, _KEY = "devstoreaccount1", 10 * "SENTINEL" + "KEYKEA=="


@dataclass(frozen=True)
class AzureServer:
    """A running server and an account of it.

    Attributes:
        endpoint: Its base URL with the account, without a slash at the end.
    """

    endpoint: str
    account_name: str
    account_key: str

    @property
    def options(self) -> dict[str, str]:
        """As ``storage_options``."""
        return {
            "endpoint": self.endpoint,
            "account_name": self.account_name,
            "account_key": self.account_key,
        }

    def sas(self, permissions: str, *, lifetime: timedelta = timedelta(hours=1)) -> str:
        """A shared access signature: a query that opens the account to whoever has it.

        Args:
            permissions: Of ``r`` (read), ``c`` (create), ``w`` (write) and ``l`` (list).
            lifetime: A negative one has expired.
        """
        # Azure's "Create an account SAS": these fields, in this order, one a line.
        expiry = (datetime.now(UTC) + lifetime).strftime("%Y-%m-%dT%H:%M:%SZ")
        version, services, resources = "2021-12-02", "b", "sco"
        fields = [self.account_name, permissions, services, resources, "", expiry, "", "", version, ""]
        text = "".join(f"{field}\n" for field in fields)
        digest = hmac.digest(base64.b64decode(self.account_key), text.encode(), hashlib.sha256)
        return urlencode(
            {
                "sv": version,
                "ss": services,
                "srt": resources,
                "sp": permissions,
                "se": expiry,
                "sig": base64.b64encode(digest).decode(),
            }
        )


@contextmanager
def run_azurite() -> Iterator[AzureServer]:
    """Run Azurite's blob service on a free port."""
    program = find_program("azurite-blob", str(_ROOT / ".servers" / "node_modules" / ".bin"))
    with tempfile.TemporaryDirectory(prefix="azurite-") as folder, reserve_port() as port:
        command = [program, "--blobHost", "127.0.0.1", "--blobPort", str(port), "--inMemoryPersistence"]
        # Clients are newer than what Azurite knows of the protocol, but use nothing of it that is newer.
        command += ["--silent", "--disableTelemetry", "--skipApiVersionCheck"]
        environ = os.environ | {"AZURITE_ACCOUNTS": f"{_ACCOUNT}:{_KEY}"}
        with run_server(command, port, Path(folder), environ=environ):
            yield AzureServer(f"http://127.0.0.1:{port}/{_ACCOUNT}", _ACCOUNT, _KEY)
