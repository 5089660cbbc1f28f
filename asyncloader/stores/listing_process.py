"""The program of the process that looks up prefixes and globs: one order in, one answer out."""

from __future__ import annotations

import asyncio
import os
import pickle
import random
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import AsyncExitStack, aclosing
from pathlib import PurePath

import cloudpickle

from ..errors import StoreError
from ..flow.engine import pause
from ..observe.statistics import NetworkCounts
from .expanding import Match
from .failures import TransientError
from .globs import folder_before, matcher
from .listing import ListingOrder, LookedUp
from .names import MOST_SHARDS
from .objects.clouds import PROVIDER_NOTE
from .pacing import Attempts, Notices, RetryBudget
from .router import Stores, lister_of, options_of
from .store import Access, NetworkPolicy
from .urls import INDEX_NAME, redact, scheme_of, split_key

# An index of a million shards.
_MOST_FETCHED_BYTES = 256 << 20


async def answer_order(order: ListingOrder) -> LookedUp:
    """List the patterns, and fetch the objects, of an order.

    Raises:
        ValueError: A pattern without a match, or wrong options.
        StoreError: A server did not answer, or not in time.
    """
    deadline = asyncio.timeout(order.deadline_s)
    try:
        async with deadline, AsyncExitStack() as resources:
            stores = Stores(resources, Access(order.options, order.network), NetworkCounts())
            matches = [await _list(pattern, order, stores) for pattern in order.patterns]
            fetched = [await _fetch(stores, url) for url in order.fetch]
            return LookedUp(tuple(matches), tuple(fetched))
    except TimeoutError:
        if not deadline.expired():
            raise
    names = ", ".join(_shown(name) for name in [*order.patterns, *order.fetch][:3])
    raise StoreError(f"looking up took more than {order.deadline_s:g} s; name fewer shards", shard=names)


def choose_shards(pattern: str, sizes: Mapping[str, int], is_shard: Callable[[str], bool]) -> dict[str, int]:
    """The URLs of the shards that a pattern means, in order of their keys, and their sizes; pure.

    Args:
        pattern: A URL that ends in ``/`` or whose key is a glob.
        sizes: By key, of every object below the folder that the pattern begins with.
        is_shard: Which objects below a prefix count, by URL.

    Raises:
        ValueError: None, or too many.
    """
    root, key = split_key(pattern)
    if key in sizes:
        return {pattern: sizes[key]}
    folders = set(_folders(sizes))
    # Consoles make such objects for empty folders: obstore names the key without its slash.
    objects = {name: size for name, size in sizes.items() if size or (name + "/") not in folders}
    objects.pop(key.rstrip("/"), None)
    index = folder_before(key) + INDEX_NAME
    is_meant = matcher(key, lambda name: name != index and is_shard(root + name))
    shards = {root + name: objects[name] for name in sorted(objects) if is_meant(name)}
    if len(shards) > MOST_SHARDS:
        raise ValueError(f"{_shown(pattern)} names more than {MOST_SHARDS} shards")
    if not shards:
        seen = f"there are {len(objects)} other objects" if objects else "there is no object at all"
        what = "is a shard by its suffix" if key.endswith("/") or not key else "matches"
        raise ValueError(
            f"no object {what} for {_shown(pattern)}; {seen} below {redact(root)}{folder_before(key)}"
        )
    return shards


async def _list(pattern: str, order: ListingOrder, stores: Stores) -> Match:
    root, key = split_key(pattern)
    sizes = await _sizes(root, folder_before(key), order)
    shards = choose_shards(pattern, sizes, order.is_shard)
    name = folder_before(key) + INDEX_NAME
    index = await _fetch(stores, root + name) if order.indexes and name in sizes else None
    return Match(pattern, [*shards], sizes=[*shards.values()], index=index)


async def _sizes(root: str, folder: str, order: ListingOrder) -> dict[str, int]:
    """The size of every object below a folder, by key."""
    scheme, notices = scheme_of(root), Notices()
    options = options_of(scheme, order.options)
    sizes: dict[str, int] = {}
    after: str | None = None
    attempts = _attempts(order.network)
    while True:
        try:
            listing = lister_of(scheme).list_pages(root, folder, options, order.network, after)
            async with aclosing(listing) as pages:
                async for page in pages:
                    sizes.update(page)
                    # If a page fails, the retry goes on behind the last key.
                    after = page[-1][0]
                    attempts = _attempts(order.network)
            return sizes
        except TransientError as error:
            await pause(notices.pause_s(attempts, error, time.monotonic()))


async def _fetch(stores: Stores, url: str) -> bytes:
    """The whole of a small object."""
    async with stores.read(url, 0, _MOST_FETCHED_BYTES + 1) as body:
        content = bytearray()
        async for chunk in body.chunks:
            content += chunk
            if len(content) > _MOST_FETCHED_BYTES:
                raise StoreError(
                    f"expected at most {_MOST_FETCHED_BYTES >> 20} MiB to be read at once", shard=redact(url)
                )
        return bytes(content)


def _attempts(network: NetworkPolicy) -> Attempts:
    return Attempts(network, RetryBudget(), random.Random())


def _folders(keys: Mapping[str, int]) -> Iterator[str]:
    """Every folder that a key lies in."""
    for key in keys:
        end = key.find("/")
        while end != -1:
            yield key[: end + 1]
            end = key.find("/", end + 1)


def _shown(pattern: str) -> str:
    """The pattern without what would be a query in other URLs; ``...`` marks the cut."""
    shown = redact(pattern)
    return shown if shown == pattern else f"{shown}..."


def main() -> None:
    """Read an order, and write the answer or the exception that it ended with."""
    # Ctrl-C reaches the whole group; the parent decides, and this process sees its end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Output of the user's functions must not get into the answer.
    answers = os.dup(1)
    os.dup2(2, 1)
    order = pickle.load(sys.stdin.buffer)
    assert isinstance(order, ListingOrder)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with open(answers, "wb") as out:
        # cloudpickle, since an exception may be of the user's main module.
        cloudpickle.dump(_answer(order), out)
        out.flush()
    # Without waiting for obstore's threads and the one above: their work is not needed any more.
    os._exit(0)


def _answer(order: ListingOrder) -> object:
    try:
        return asyncio.run(answer_order(order))
    except Exception as error:
        if PROVIDER_NOTE in getattr(error, "__notes__", ()):
            return _of_user(error)
        if isinstance(error, StoreError):
            return error
        for kind in (ValueError, TypeError):
            if isinstance(error, kind):  # maybe a subclass of any library, which the parent does not know
                return kind(*error.args[:1])
        # Its text may be a client library's, and so hold a secret.
        frame = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{PurePath(frame.filename).name}:{frame.lineno}"
        return RuntimeError(f"listing failed with {type(error).__name__} at {where}")


def _of_user(error: Exception) -> Exception:
    """The error of the user's function, with its traceback, which does not pickle, as a note."""
    text = "".join(traceback.format_exception(error)).rstrip()
    error.add_note(f"in the process that looks up shards:\n{text}")
    try:
        pickle.loads(cloudpickle.dumps(error))
    except Exception:  # such as one whose arguments are not those of its constructor
        return RuntimeError(text)
    return error


def _end_with_parent() -> None:
    # Reads from the descriptor: a thread that holds the lock of sys.stdin would hang the interpreter's end.
    while os.read(0, 4096):
        pass
    os._exit(1)
