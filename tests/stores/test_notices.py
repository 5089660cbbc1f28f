"""What is logged of requests that are repeated: soon, not often, and no secret."""

from __future__ import annotations

import logging
import random
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import asyncloader as al
from asyncloader import testing
from asyncloader.errors import StoreError
from asyncloader.stores.failures import TransientError
from asyncloader.stores.pacing import Attempts, Notices, RetryBudget
from asyncloader.stores.store import NetworkPolicy

LOGGER = "asyncloader.network"
QUICK = al.NetworkPolicy(attempts=4, backoff_s=0.05)
SLOW = al.NetworkPolicy(attempts=3, backoff_s=2.5)  # gives up after one pause of so long


@pytest.fixture
def refusing() -> str:
    """Host and port of a server that is down."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{listener.getsockname()[1]}"


def attempts_of(policy: NetworkPolicy) -> Attempts:
    return Attempts(policy, RetryBudget(), random.Random(0))


def test_the_first_retry_is_logged_at_once_and_then_one_in_a_while(caplog: Any) -> None:
    notices, policy = Notices(), NetworkPolicy(attempts=3, deadline_s=60)
    down = TransientError("the connection failed: Connection refused", shard="https://host:1/a/b.tar")
    for now_s in (100.0, 100.1, 115.0, 129.9, 130.0, 131.0):
        notices.pause_s(attempts_of(policy), down, now_s)
    logged = [record.getMessage() for record in caplog.records if record.name == LOGGER]
    assert len(logged) == 2
    assert logged[0].startswith("https://host:1: the connection failed: Connection refused; retrying in 0.")
    assert logged[0].endswith(" s, attempt 2 of at most 3 for these bytes, all of them to begin within 60 s")
    assert all(record.levelno == logging.WARNING for record in caplog.records)


def test_what_is_given_up_is_left_to_the_error(caplog: Any) -> None:
    attempts = attempts_of(NetworkPolicy(attempts=1))
    with pytest.raises(StoreError, match="gave up"):
        Notices().pause_s(attempts, TransientError("cut", shard="s3://bucket/key"), 0.0)
    assert not caplog.records


@pytest.mark.parametrize(
    ("shard", "named"), [(None, "a server"), ("x", "a server"), ("s3://bucket/key", "s3://bucket")]
)
def test_an_endpoint_is_named_where_it_is_known(shard: str | None, named: str, caplog: Any) -> None:
    Notices().pause_s(attempts_of(QUICK), TransientError("cut", shard=shard), 0.0)
    assert caplog.records[0].getMessage().startswith(f"{named}: cut; retrying")


def test_a_refused_connection_is_told_of_while_it_is_retried(refusing: str, caplog: Any) -> None:
    loader = al.DataLoader(
        al.from_urls(f"http://SENTINEL:SENTINEL@{refusing}/x.tar?token=SENTINEL", network=SLOW)
    )
    began = time.time()
    with pytest.raises(StoreError, match="gave up"):
        list(loader)
    logged = [record for record in caplog.records if record.name == LOGGER]
    assert logged[0].created - began < 2 < time.time() - began
    assert len(logged) == 1  # of all attempts at the one part
    message = logged[0].getMessage()
    assert message.startswith(f"http://{refusing}: the connection failed")
    assert "SENTINEL" not in caplog.text


def test_a_server_that_answers_at_once_again_is_told_of_once(caplog: Any) -> None:
    faults = [testing.Status(503, times=3)]
    with testing.serve({"x.txt": b"a\n" * 1000}, faults) as server:
        loader = al.DataLoader(al.from_urls(server.url_of("x.txt"), network=QUICK), 100)
        assert sum(map(len, (batch["text"] for batch in loader))) == 1000
    logged = [record.getMessage() for record in caplog.records if record.name == LOGGER]
    assert len(logged) == 1 and "503" in logged[0]


TELLING = """
import asyncloader as al
from asyncloader.errors import StoreError

refusing = {refusing!r}
quick = al.NetworkPolicy(attempts=4, backoff_s=0.05)
recipe = al.from_urls([f"http://{{refusing}}/{{n}}.tar?token=SENTINEL" for n in range(2)], network=quick)
options = {{"endpoint": f"http://{{refusing}}", "anonymous": True}}
for read in (
    lambda: list(al.DataLoader(recipe, num_workers=2)),
    lambda: al.from_urls("s3://bucket/train/", storage_options=options, network=quick),
):
    try:
        read()
    except StoreError as error:
        assert "gave up" in str(error)
    else:
        raise AssertionError("it was read")
"""


def test_workers_and_listings_tell_on_standard_error(refusing: str, tmp_path: Path) -> None:
    # A program of its own: the process that workers come from keeps the standard error that it began with.
    script = tmp_path / "script.py"
    script.write_text(TELLING.format(refusing=refusing))
    ran = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=100)
    assert ran.returncode == 0, ran.stderr
    assert f"http://{refusing}: the connection failed" in ran.stderr and "retrying" in ran.stderr
    assert "s3://bucket: the connection failed" in ran.stderr
    assert "SENTINEL" not in ran.stderr
