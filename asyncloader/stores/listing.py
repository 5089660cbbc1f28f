"""Lists prefixes and globs of object stores, once, in a process of its own.

Laws:

* The process that makes a dataset does not use obstore for it: a child forked later would hang or crash.
* The child gets its order on its standard input only: other users can read command lines and environments.
  It ends with its parent, and at a deadline.
"""

from __future__ import annotations

import pickle
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from ..flow.process import clean_python, occupy_standard_descriptors
from .expanding import Match
from .store import NetworkPolicy

# Ten million keys, a thousand in an answer, need ten thousand answers of 50 ms each.
_DEADLINE_S = 600.0

# After its own deadline the child has so long to report it and end.
_GRACE_S = 10.0

_PROGRAM = "from asyncloader.stores.listing_process import main; main()"


@dataclass(frozen=True)
class LookedUp:
    """The answer to an order: what was found for each pattern, and the content of each URL to fetch."""

    matches: tuple[Match, ...]
    fetched: tuple[bytes, ...] = field(repr=False)


@dataclass(frozen=True)
class ListingOrder:
    """What to look up; see ``look`` for its fields."""

    patterns: tuple[str, ...] = field(repr=False)
    options: Mapping[str, Any] = field(repr=False)
    network: NetworkPolicy
    is_shard: Callable[[str], bool]
    indexes: bool
    fetch: tuple[str, ...] = field(repr=False)
    deadline_s: float


def look(
    patterns: Sequence[str],
    options: Mapping[str, Any],
    is_shard: Callable[[str], bool] = bool,
    *,
    network: NetworkPolicy | None = None,
    indexes: bool = False,
    fetch: Sequence[str] = (),
    deadline_s: float = _DEADLINE_S,
) -> LookedUp:
    """Ask the servers which shards there are, and fetch small objects. Blocks; starts no obstore here.

    Args:
        patterns: Those for which ``urls.is_remote_pattern`` is true. If an object has exactly the name of a
            glob, the glob means that object, as with files.
        options: Storage options.
        is_shard: Whether an object below a prefix counts, by its URL; all do by default. Runs in the child.
        network: Time-outs and attempts.
        indexes: Also fetch the ``asyncloader-index.json`` of each pattern that has one.
        fetch: URLs of any scheme whose contents are wanted, of up to 256 MiB each.
        deadline_s: Seconds for all of it. 600, since a bucket may have millions of keys.

    Raises:
        ValueError: A pattern without a match, or wrong options.
        StoreError: A server did not answer, or not in time.
        RuntimeError: No process could be started.
    """
    network = NetworkPolicy() if network is None else network
    wanted = tuple(patterns), dict(options), network, is_shard, indexes, tuple(fetch)
    order = ListingOrder(*wanted, deadline_s)
    if not (order.patterns or order.fetch):
        return LookedUp((), ())
    answer = _ask_child(order)
    if isinstance(answer, Exception):
        raise answer
    assert isinstance(answer, LookedUp)
    return answer


def _ask_child(order: ListingOrder) -> object:
    occupy_standard_descriptors()  # also for the child, which prints to what it inherits
    import cloudpickle  # options and predicates may be functions of the main module

    try:
        order_bytes = cloudpickle.dumps(order)
    except Exception as error:
        # Everything else in an order is strings, numbers and a function of the library.
        error.add_note(
            "storage_options['credential_provider'] cannot be sent to the process that looks up shards: "
            "create what does not pickle, such as a client, inside the function, when it is first needed"
        )
        raise
    command, environment = clean_python(_PROGRAM)
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as child:
        assert child.stdin is not None and child.stdout is not None
        timer = threading.Timer(order.deadline_s + _GRACE_S, child.kill)
        timer.daemon = True
        timer.start()
        try:
            answer = _converse(child, order_bytes)
        finally:
            timer.cancel()
            timer.join()
            child.kill()
    if not answer:
        raise RuntimeError(
            f"the process that lists object stores ended with status {child.returncode} and no answer"
        )
    return pickle.loads(answer)


def _converse(child: subprocess.Popen[bytes], order: bytes) -> bytes:
    assert child.stdin is not None and child.stdout is not None
    try:
        child.stdin.write(order)
        child.stdin.flush()
    except BrokenPipeError:  # it ended before it read its order; its status is reported
        with suppress(BrokenPipeError):  # of what is still to be written
            child.stdin.close()
        return b""
    # Its input stays open: the child sees any end of this process by its closing.
    answer = child.stdout.read()
    return answer if child.wait() == 0 else b""
