from __future__ import annotations

import http.client
import socket
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from asyncloader.testing import check_leaks

from . import process, run_azurite, run_gcs, run_moto, run_nginx, run_swift

pytestmark = pytest.mark.servers


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


@pytest.mark.parametrize("run", [run_moto, run_swift, run_azurite, run_gcs])
def test_a_server_leaves_neither_process_nor_port_nor_file(
    run: Callable[[], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with check_leaks(), run() as server:
        place = urlsplit(getattr(server, "endpoint", server))
        socket.create_connection((place.hostname, place.port), timeout=5).close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((place.hostname, place.port), timeout=5)
    assert list(tmp_path.iterdir()) == []


def test_a_server_that_cannot_start_says_why(tmp_path: Path) -> None:
    with check_leaks(), pytest.raises(RuntimeError, match="unknown directive"), run_nginx(tmp_path, "no;"):
        pass


def test_a_missing_server_skips_a_test_and_fails_it_where_all_are_required(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("ASYNCLOADER_REQUIRE_SERVERS", raising=False)
    with pytest.raises(pytest.skip.Exception, match="none-such is not installed"):
        process.find_program("none-such")
    monkeypatch.setenv("ASYNCLOADER_REQUIRE_SERVERS", "1")
    with pytest.raises(pytest.fail.Exception, match="none-such is not installed"):
        process.find_program("none-such")
