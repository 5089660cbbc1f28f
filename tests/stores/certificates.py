"""Certificates for servers of tests."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from pathlib import Path

import pytest

__all__ = ["self_signed"]


def self_signed(folder: Path) -> ssl.SSLContext:
    """What a server needs for TLS, with a certificate that nobody vouches for; made in ``folder``."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    files = ["-keyout", folder / "key.pem", "-out", folder / "cert.pem"]
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-days",
        "2",
        "-subj",
        "/CN=h",
        *files,
    ]
    subprocess.run(command, check=True, capture_output=True, timeout=30)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    return context
