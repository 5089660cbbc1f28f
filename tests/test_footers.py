"""Footers kept from epoch to epoch: by shard and version, within a bound."""

from __future__ import annotations

import pickle

import pytest

from asyncloader.formats import decoder
from asyncloader.formats.decoder import FooterCache, ShardSpec
from asyncloader.types import Answer


def head(version: str, length: int) -> Answer:
    return Answer(b"", version=version, length=length)


def test_a_footer_is_that_of_its_shard_version_and_length() -> None:
    cache = FooterCache()
    one, other = ShardSpec(url="one", footers=cache), ShardSpec(url="other", footers=cache)
    one.keep(head("v", 10), b"footer")
    assert ShardSpec(url="one", footers=cache).kept(head("v", 10)) == b"footer"
    # Servers make ETags of length and time: those of two shards may be the same.
    assert [other.kept(head("v", 10)), one.kept(head("w", 10)), one.kept(head("v", 11))] == [None, None, None]
    one.keep(head("w", 12), b"changed")
    assert one.kept(head("w", 12)) == b"changed"


def test_they_are_kept_while_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoder, "_MOST_KEPT_BYTES", 100)
    cache = FooterCache()
    shards = [ShardSpec(url=str(number), footers=cache) for number in range(5)]
    for shard in shards:
        shard.keep(head("v", 1), bytes(30))
    assert [shard.kept(head("v", 1)) is not None for shard in shards] == [True, True, True, False, False]
    shards[4].keep(head("v", 1), bytes(10))
    assert shards[4].kept(head("v", 1)) == bytes(10)


def test_another_process_begins_without() -> None:
    cache = FooterCache()
    cache.keep(("one", "v", 1), b"footer")
    assert pickle.loads(pickle.dumps(cache)) == {}
