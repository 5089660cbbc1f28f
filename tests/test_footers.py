"""Footers kept from epoch to epoch: by shard and version, within a bound."""

from __future__ import annotations

import pickle

import pytest

from asyncloader.pipeline import shards as footers
from asyncloader.pipeline.shards import FooterCache


def test_a_footer_is_that_of_its_shard_version_and_length() -> None:
    cache = FooterCache()
    one, other = cache.of("one"), cache.of("other")
    one.keep("v", 10, b"footer")
    assert cache.of("one").find("v", 10) == b"footer"
    # Servers make ETags of length and time: those of two shards may be the same.
    assert [other.find("v", 10), one.find("w", 10), one.find("v", 11)] == [None, None, None]
    one.keep("w", 12, b"changed")
    assert [one.find("v", 10), one.find("w", 12)] == [None, b"changed"]


def test_those_used_longest_ago_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(footers, "_MOST_BYTES", 100)
    cache = FooterCache()
    shards = [cache.of(str(number)) for number in range(5)]
    for shard in shards[:4]:
        shard.keep("v", 1, bytes(25))
    shards[0].keep("v", 1, bytes(20))
    shards[1].find("v", 1)
    shards[4].keep("v", 1, bytes(30))
    assert [shard.find("v", 1) is not None for shard in shards] == [True, True, False, True, True]
    shards[2].keep("v", 1, bytes(101))
    assert all(shard.find("v", 1) is None for shard in shards)


def test_another_process_begins_without() -> None:
    cache = FooterCache()
    cache.of("one").keep("v", 1, b"footer")
    assert pickle.loads(pickle.dumps(cache)).of("one").find("v", 1) is None
