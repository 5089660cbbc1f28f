"""The network: one loop that reads a range, whatever its server does, around the client of each scheme."""

from __future__ import annotations

import asyncio
import inspect
import random
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass, replace
from weakref import WeakValueDictionary

from yarl import URL

from ..errors import StoreError
from ..flow.engine import pause
from ..observe.statistics import NetworkCounts
from ..observe.tracing import Incident, Recorder
from ..types import Buffer
from .failures import ThrottledError, TransientError, check_same
from .pacing import Attempts, Hedges, Notices, Pace, RetryBudget
from .store import NO_END, Body, NetworkPolicy, Renew, Store, clip
from .urls import redact

# The statuses of an expired signature: S3 and Google 403 (400 for an expired token of a role), Azure 403,
# token services 401.
_REFUSALS = frozenset({400, 401, 403})

# How many fresh URLs are kept. A few shards are read at a time; a URL that was dropped is renewed again.
_MOST_KEPT = 1024


@dataclass(eq=False, repr=False)
class NetworkStore:
    """The objects of one server or bucket.

    A read is a series of attempts. Each waits for its turn, then for the answer, and then for progress, no
    longer than the policy allows. After a transient failure the next one begins where the bytes broke off, at
    the same version. The caller gets the bytes or a final error.

    Args:
        client: Opens ranges. It has no time-outs of its own except to connect.
        policy: How long to wait, and how often to retry.
        budget: Shared by all stores of the process.
        counts: Counts each request.
        recorder: Records each retry with its reason; None where the pass is not traced.
        renew: Returns a newly signed URL in place of one that the server has refused.

    Attributes:
        hedges: Decides on second requests, which the reader sends.
        pace: How many requests there are, and may be.
    """

    client: Store
    policy: NetworkPolicy
    budget: RetryBudget
    counts: NetworkCounts
    recorder: Recorder | None = None
    renew: Renew | None = None

    def __post_init__(self) -> None:
        self.hedges = Hedges(self.counts, self.policy.hedge)
        self.pace = Pace(self.policy.deadline_s)
        self._queue = RequestQueue(self.pace)
        self._renewals = None if self.renew is None else Renewals(self.renew)
        self._notices = Notices()
        self._draw = random.Random()

    @asynccontextmanager
    async def read(self, url: str, start: int, stop: int, *, etag: str | None = None) -> AsyncIterator[Body]:
        self.budget.request()
        async with AsyncExitStack() as request:
            transfer = _Transfer(self, request, url, etag)
            body = await transfer.open(start, stop)
            async with aclosing(transfer.chunks(body, stop)) as chunks:
                yield replace(body, chunks=chunks)


class _Transfer:
    """One read: a series of attempts at a range, one at a time.

    Args:
        store: Whose policies apply.
        request: What the current attempt has open.
        url: Of the shard, as it was listed.
        etag: The version to read; None for any, until the first answer names one.
    """

    def __init__(self, store: NetworkStore, request: AsyncExitStack, url: str, etag: str | None) -> None:
        self._store = store
        self._request = request
        self._url = url
        self._etag = etag
        self._attempts = Attempts(store.policy, store.budget, store._draw)
        self._halvings: int | None = None  # at the origin, when the request was let in; None if it has left
        self._clock = asyncio.get_running_loop().time

    async def open(self, start: int, stop: int) -> Body:
        """Open a range, by as many attempts as it takes.

        Raises:
            StoreError: No further attempt would help, or is allowed.
        """
        while True:
            try:
                return await self._attempt(start, stop)
            except TransientError as error:
                await self._wait_turn(error)

    async def chunks(self, first: Body, asked: int) -> AsyncGenerator[Buffer, None]:
        """The bytes of a body, continued by others where it breaks off.

        Args:
            first: From ``open``.
            asked: The stop that it was opened with.
        """
        policy, body, offset = self._store.policy, first, first.start
        end = NO_END if first.stop is None else first.stop
        stop = max(asked, end)
        self._etag = first.etag or self._etag
        while True:
            if stop > asked:
                # The range was ignored. A body that continues into other parts waits for its consumer. If it
                # still counted as a request, it could keep out the one that the consumer waits for.
                self._leave()
            at = body.start
            # The time spent waiting, and the bytes received, since the last progress.
            waited_s, progress_bytes = 0.0, 0
            try:
                while True:
                    began_s = self._clock()
                    try:
                        async with asyncio.timeout(max(0.0, policy.stall_s - waited_s)):
                            chunk = await anext(body.chunks)
                    except StopAsyncIteration:
                        break
                    except TimeoutError:
                        what = f"fewer than {policy.stall_bytes} bytes came in {policy.stall_s:g} s"
                        raise TransientError(what, offset=at) from None
                    waited_s += self._clock() - began_s
                    progress_bytes += len(chunk)
                    if progress_bytes >= policy.stall_bytes:
                        waited_s, progress_bytes = 0.0, 0
                    # A resumed body may begin before the byte wanted and end behind the last one.
                    wanted = chunk if body is first else clip(chunk, offset - at, end - at)
                    at += len(chunk)
                    if wanted:
                        self._attempts.received(len(wanted))
                        offset += len(wanted)
                        yield wanted
                    del chunk, wanted  # so that their memory is free when the decoder is done with it
                if body.stop is None or at >= body.stop:
                    return
                what = f"the body ended at byte {at}, before byte {body.stop} that the server promised"
                raise TransientError(what, offset=at)
            except StoreError as error:
                error.shard = redact(self._url)
                if not isinstance(error, TransientError):
                    raise
                if at == body.stop:
                    # Only the end mark is missing, such as the last chunk. The range has stated the end, and
                    # behind it there may be nothing to request.
                    return
                await self._wait_turn(error)
            # A body of unknown length may already have been at its end, behind which there is nothing to
            # request. With the byte before it there always is something.
            ask_from = offset if first.stop is not None else max(offset - 1, first.start)
            body = await self.open(ask_from, stop)
            check_same(body, self._url, offset, first.etag, first.total)

    async def _attempt(self, start: int, stop: int) -> Body:
        """One request, in its turn and in its time; from a renewed URL if the one at hand is refused."""
        store, limit_s = self._store, self._store.policy.answer_s
        halvings = self._halvings = await store._queue.enter()
        self._request.callback(self._leave)
        store.counts.requests += 1
        began_s, deadline = self._clock(), asyncio.timeout(limit_s)
        try:
            async with deadline:
                body = await self._answer(start, stop)
        except TimeoutError:
            if not deadline.expired():  # it is the user's own, of a callback that renews URLs
                raise
            what = f"the server did not answer within {limit_s:g} s"
            raise TransientError(what, shard=redact(self._url), offset=start) from None
        except ThrottledError as error:
            store.counts.throttled += 1
            store.hedges.throttled()
            store._queue.throttled(halvings, error.retry_after_s)
            raise
        store.hedges.answered(self._clock() - began_s)
        store._queue.answered()
        return body

    async def _answer(self, start: int, stop: int) -> Body:
        """What the client opens. A refused URL costs neither an attempt nor a pause: the network is sound."""
        store, url = self._store, self._url
        renewals, is_renewed = store._renewals, False
        target = url if renewals is None else renewals.url_of(url)
        while True:
            try:
                opening = store.client.read(target, start, stop, etag=self._etag)
                return await self._request.enter_async_context(opening)
            except StoreError as error:
                error.shard = redact(url)
                if renewals is None or error.status not in _REFUSALS:
                    raise
                status = error.status
            if is_renewed:
                what = (
                    f"the server refused the URL, and answered {status} to the one that renew gave for it too"
                )
                raise StoreError(what, shard=redact(url), status=status, offset=start)
            target, is_renewed = await renewals.renewed(url, target), True
            store.counts.requests += 1  # the refused one was counted where it was sent

    async def _wait_turn(self, error: TransientError) -> None:
        """Close what has failed, and wait until the next attempt, without a place in the queue."""
        store = self._store
        await self._request.aclose()
        wait_s = store._notices.pause_s(self._attempts, error, time.monotonic())
        store.counts.retries += 1
        if store.recorder is not None:
            kind = "throttled" if isinstance(error, ThrottledError) else "retry"
            about = {"shard": error.shard or "", "reason": error.args[0], "status": error.status}
            store.recorder.record(Incident(kind, time.perf_counter(), {**about, "wait_s": wait_s}))
        await pause(wait_s)

    def _leave(self) -> None:
        """Let the next request in. Idempotent."""
        if self._halvings is not None:
            self._halvings = None
            self._store._queue.leave()


class RequestQueue:
    """The requests that wait for their turn at one origin, in the order they came.

    Args:
        pace: Decides how many are let in.
    """

    def __init__(self, pace: Pace) -> None:
        self._pace = pace
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def enter(self) -> int:
        """Wait until there is room for a request; returns how often the limit had been halved by then."""
        if self._waiting or not self._pace.has_room:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                if not turn.cancelled():  # it was already granted
                    self.leave()
                raise
        else:
            self._pace.in_use += 1
        return self._pace.halvings

    def leave(self) -> None:
        """A request is over."""
        self._pace.in_use -= 1
        self._admit()

    def answered(self) -> None:
        """A request succeeded."""
        self._pace.answered()
        self._admit()

    def throttled(self, halvings: int, retry_after_s: float | None) -> None:
        """A request was refused; ``halvings`` is what ``enter`` returned for it."""
        loop = asyncio.get_running_loop()
        self._pace.throttled(halvings, retry_after_s, loop.time())
        if (until_s := self._pace.rests_until_s) is not None:
            loop.call_at(until_s, self._rested, until_s)

    def _rested(self, until_s: float) -> None:
        self._pace.rested(until_s)
        self._admit()

    def _admit(self) -> None:
        while self._waiting and self._pace.has_room:
            turn = self._waiting.popleft()
            if not turn.done():
                self._pace.in_use += 1
                turn.set_result(None)


class Renewals:
    """The newly signed URLs of shards whose own were refused.

    A request is authorised when it begins, so a URL that expires within a body cuts nothing. The parts of a
    shard share its fresh URL, and renew it once, however many of them were refused.

    Args:
        renew: The user's callback; gets the shard's URL as it was listed. A plain function runs in a thread.
    """

    def __init__(self, renew: Renew) -> None:
        self._renew = renew
        self._fresh: dict[str, str] = {}
        self._renewing: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def url_of(self, url: str) -> str:
        """The latest URL of the shard."""
        return self._fresh.get(url, url)

    async def renewed(self, url: str, refused: str) -> str:
        """A URL for the shard that is newer than ``refused``."""
        async with self._renewing.setdefault(url, asyncio.Lock()):
            current = self._fresh.get(url, url)
            if current != refused:  # another read has renewed it meanwhile
                return current
            try:
                # In a thread a coroutine function only makes its coroutine.
                given = await asyncio.to_thread(self._renew, url)
                fresh = _checked(await given if inspect.isawaitable(given) else given, url)
            except Exception as error:
                error.add_note(f"raised while the URL of shard {redact(url)} was renewed")
                raise
            self._fresh[url] = fresh
            if len(self._fresh) > _MOST_KEPT:
                del self._fresh[next(iter(self._fresh))]
            return fresh


def _checked(fresh: object, url: str) -> str:
    if not isinstance(fresh, str):
        raise TypeError(f"renew should return a URL as a string, not {type(fresh).__name__}")
    scheme, wanted = fresh.partition("://")[0].lower(), url.partition("://")[0].lower()
    if scheme != wanted and (wanted, scheme) != ("http", "https"):
        raise ValueError(f"renew should return a {wanted}:// URL for this shard, but returned another scheme")
    try:
        host = URL(fresh).raw_host
    except ValueError:
        host = None  # the client's text quotes the URL
    if not host:
        raise ValueError("renew should return a valid URL, but what it returned is none")
    return fresh
