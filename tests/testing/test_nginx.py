from __future__ import annotations

import http.client
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from asyncloader.testing import check_leaks

from . import servers
from .servers import run_nginx


def test_nginx_serves_a_directory_with_ranges_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "shard.bin").write_bytes(b"0123456789")
    with (
        check_leaks(),
        run_nginx(tmp_path) as url,
        closing(http.client.HTTPConnection(urlsplit(url).netloc, timeout=5)) as connection,
    ):
        connection.request("GET", "/shard.bin", headers={"Range": "bytes=2-4"})
        response = connection.getresponse()
        assert (response.status, response.read()) == (206, b"234")
        assert response.headers["Content-Range"] == "bytes 2-4/10"
        connection.request("GET", "/")
        assert b"shard.bin" in connection.getresponse().read()


def test_two_nginx_run_side_by_side(tmp_path: Path) -> None:
    with run_nginx(tmp_path) as one, run_nginx(tmp_path) as other:
        assert one != other


def test_nginx_that_cannot_start_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "_CONFIG", servers._CONFIG.replace("sendfile on", "sendfiel on"))
    with check_leaks(), pytest.raises(RuntimeError, match="unknown directive"), run_nginx(tmp_path):
        pass
