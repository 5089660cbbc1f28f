"""The workers of a pass as one stream: in the order of their lanes' turns, or as batches are done."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from time import monotonic
from typing import Any, Protocol

from .._flow.channel import EndOfChannel, ReceiveTimeout
from ..audit.records import LeftSamples
from ..plan.lanes import Rotation
from ..stream import Note
from ..workers import wait_any, wait_any_async
from .intake import Intake
from .post import Post

__all__ = ["AsDone", "Fleet", "InTurn"]

# Stacks in a message: of more workers, nobody reads them, and each may take a second to be had.
_MOST_OBSERVED = 4


class Order(Protocol):
    """Which posts a batch may come from next."""

    def candidates(self) -> Sequence[Post]:
        """Those, the one to be asked first in front; none when all lanes have ended."""
        ...

    def passed(self, post: Post, note: Note) -> None:
        """``note`` came from ``post``."""
        ...


class InTurn:
    """A batch of each lane in turn, whoever is done.

    Args:
        rotation: Of the rank's lanes.
        posts: Which carry them.
    """

    def __init__(self, rotation: Rotation, posts: Sequence[Post]) -> None:
        self._rotation = rotation
        self._turns = iter(rotation)
        self._posts = {lane: post for post in posts for lane in post.lanes}

    def candidates(self) -> Sequence[Post]:
        lane = next(self._turns, None)
        return () if lane is None else (self._posts[lane],)

    def passed(self, post: Post, note: Note) -> None:
        lane = next(self._turns)
        assert note.lane == lane, f"lane {note.lane} came in the turn of lane {lane}"
        if note.position is None:
            self._rotation.mark_dry()
        else:
            self._rotation.advance()


class AsDone:
    """Whichever batch is done first.

    Args:
        posts: Which may have done one.
    """

    def __init__(self, posts: Sequence[Post]) -> None:
        self._carrying = deque(posts)

    def candidates(self) -> Sequence[Post]:
        return self._carrying

    def passed(self, post: Post, note: Note) -> None:
        # Asked last the next time: a quick one must not keep the others' batches waiting.
        self._carrying.remove(post)
        if post.open_lanes:
            self._carrying.append(post)


class Fleet:
    """A ``Receiver`` of the batches of all posts.

    Args:
        posts: Each with its worker started.
        order: Which of them is next.
        intake: Told of every note.
        close: Closes the workers.
        awaits_ends: Whether to wait for the ends of their jobs after the last batch, since what they still
            have to do may fail.
    """

    def __init__(
        self,
        posts: Sequence[Post],
        order: Order,
        intake: Intake,
        close: Callable[[], None],
        *,
        awaits_ends: bool,
    ) -> None:
        self._order = order
        self._intake = intake
        self._close = close
        self._ending = list(posts) if awaits_ends else []
        #: Those that the consumer waits for.
        self._awaited: Sequence[Post] = ()

    def receive(self, timeout_s: float | None = None) -> tuple[Any, Note]:
        """The next batch; see ``Receiver``."""
        deadline = None if timeout_s is None else monotonic() + timeout_s
        ready: Collection[int] = ()
        while (taken := self._take(ready)) is None:
            ready = wait_any([post.worker for post in self._awaited], deadline)
            if not ready:
                raise ReceiveTimeout(f"nothing came for {timeout_s} s")
        return taken

    async def receive_async(self) -> tuple[Any, Note]:
        """Like ``receive``, from a coroutine. If cancelled, no batch is lost."""
        ready: Collection[int] = ()
        while (taken := self._take(ready)) is None:
            ready = await wait_any_async([post.worker for post in self._awaited])
        return taken

    @property
    def left_at_ends(self) -> Mapping[int, Sequence[LeftSamples]]:
        """What operators have left out behind the last batch of each lane that has ended."""
        return self._intake.left_at_ends

    def close(self) -> None:
        """End the workers."""
        self._close()

    def describe_wait(self) -> str:
        """Whom the consumer waits for, and what they do; takes seconds at most."""
        awaited = self._awaited[:_MOST_OBSERVED]
        return self._tell([_tell_post(post, post.worker.observe()) for post in awaited])

    async def describe_wait_async(self) -> str:
        """Like ``describe_wait``, from a coroutine."""
        awaited = self._awaited[:_MOST_OBSERVED]
        return self._tell([_tell_post(post, await post.worker.observe_async()) for post in awaited])

    def _tell(self, told: list[str]) -> str:
        if more := len(self._awaited) - len(told):
            told.append(f"and {more} more workers")
        return "\n".join(told)

    def _take(self, ready: Collection[int]) -> tuple[Any, Note] | None:
        """The next batch that has come, None if one has to wait for those awaited."""
        while candidates := self._order.candidates():
            for post in candidates:
                if (came := post.take(ready)) is not None:
                    break
            else:
                self._awaited = tuple(candidates)
                return None
            self._order.passed(post, came[1])
            if self._intake.add(came[1]):
                return came
        while self._ending:
            self._awaited = self._ending[:1]
            try:
                self._ending[0].take(ready)
            except EndOfChannel:
                self._ending.pop(0)
            else:
                return None
        raise EndOfChannel


def _tell_post(post: Post, doing: str) -> str:
    """Which worker it is, where it is as far as is known, and what it does."""
    return f"{post.worker.name}, {post.describe_next()}, {doing}"
