"""Connections between two processes: whole messages over a stream socket, and objects both ways over a link.

Laws:

* Sending never blocks. What the socket does not take is kept here, and sent before the next object, or while
  this end waits to receive: two ends that send much to each other never wait for one another.
* Large memory lies in slots of the sender's; the next message the other way names those that came free.
* What was sent whole is received, even if the sender has died since; the end comes after it.
* One thread at a time receives; any may send.
"""

from __future__ import annotations

import asyncio
import errno
import os
import select
import socket
import struct
import sys
import threading
from array import array
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from time import monotonic
from typing import Any, NamedTuple, Protocol

from ..flow.channel import EndOfChannel
from .packing import Packed, unpack
from .slots import InboundSlots, OpenSlot, OutboundSlots

# The messages between a worker, its parent and the fork server.

READY = b"ready"  # the fork server's first message; any other is a traceback


class FromServer(IntEnum):
    """What the fork server reports to the parent of one worker, as the first byte of the message."""

    PID = 1  # the worker was forked
    EXIT = 2  # it ended, with this exit code
    FAILED = 3  # it could not be forked, for this reason


@dataclass(frozen=True, slots=True)
class Setting:
    """What a worker takes over from its parent, as it was when the pool was started."""

    path: list[str]
    argv: list[str]
    directory: str
    environment: dict[str, str]
    prefetch: int
    prefetch_bytes: int
    spare_bytes: int


# The length of the message behind it, and whether descriptors come with it.
_FRAME = struct.Struct("<I?")

# Messages are small: what is large lies in shared memory, whose descriptor comes with the message or came
# with an earlier one. Several that wait are received at once.
_RECEIVED_BYTES = 16 << 10

# Those of a fork request: the worker's connection, its lifeline, its stack's pipe, its job.
_MOST_DESCRIPTORS = 4
_DESCRIPTORS_BYTES = socket.CMSG_SPACE(_MOST_DESCRIPTORS * array("i").itemsize)

# Not on macOS. Plain numbers: Python's flags are enumerations, which take long to use.
_CLOSE_ON_EXEC = int(getattr(socket, "MSG_CMSG_CLOEXEC", 0))  # a program that a job runs must not inherit it
_NO_SIGNAL = int(getattr(socket, "MSG_NOSIGNAL", 0))  # a program may have set SIGPIPE to kill it
_TRUNCATED = int(socket.MSG_CTRUNC)


class MessageSocket:
    """One end of a stream socket over which whole messages go, and descriptors with them.

    Not of a socket that keeps messages apart by itself: macOS has none that also shows the other end's end.

    Args:
        end: The socket, which this closes.
    """

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(False)
        self._end = end
        # Re-entrant: a garbage collection while it is held may run the finalizer that closes this.
        self._lock = threading.RLock()
        self._unsent = deque[tuple[bytes, Sequence[int]]]()
        self._unread = bytearray()
        #: Of messages that are still to be received.
        self._descriptors = deque[Sequence[int]]()

    def fileno(self) -> int:
        """Readable when there is something to ``receive``."""
        return self._end.fileno()

    # --- sending ---

    def post(self, message: bytes, descriptors: Sequence[int] = ()) -> None:
        """Send a message, or keep it until it is sent; does nothing if either end is closed.

        Args:
            message: Whole.
            descriptors: Duplicates of them go with it.
        """
        rest = _FRAME.pack(len(message), bool(descriptors)) + message
        with self._lock:
            if self._unsent:
                self.catch_up()
            if not self._unsent:
                try:
                    rest = self._transmit(rest, descriptors)
                    descriptors = ()
                except BlockingIOError:
                    pass
                except OSError:  # the other end has gone, or this one was closed
                    return
            if rest:
                self._unsent.append((rest, [os.dup(descriptor) for descriptor in descriptors]))

    def _transmit(self, message: bytes, descriptors: Sequence[int]) -> bytes:
        """Send what the socket takes, the descriptors with the first byte; returns the rest."""
        if not descriptors:
            return message[self._end.send(message, _NO_SIGNAL) :]
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", descriptors))]
        # Not socket.send_fds: it ignores its flags, as recv_fds does.
        return message[self._end.sendmsg([message], rights, _NO_SIGNAL) :]

    @property
    def is_behind(self) -> bool:
        """Whether something waits for the socket to take it."""
        return bool(self._unsent)

    def catch_up(self) -> None:
        """Send as much of what waits as the socket takes."""
        with self._lock:
            while self._unsent:
                message, descriptors = self._unsent[0]
                try:
                    rest = self._transmit(message, descriptors)
                except BlockingIOError:
                    return
                except OSError:
                    self._forget_unsent()
                    return
                self._unsent.popleft()
                _close_all(descriptors)
                if rest:
                    self._unsent.appendleft((rest, ()))

    def _forget_unsent(self) -> None:
        while self._unsent:
            _close_all(self._unsent.popleft()[1])

    # --- receiving ---

    def receive(self) -> tuple[memoryview, Sequence[int]]:
        """The next message, and its descriptors.

        Raises:
            BlockingIOError: There is none yet.
            EndOfChannel: There will be none: the other end is closed, or one of them was let go.
            OSError: This process has too many open files to receive it; it is lost.
        """
        while True:
            unread = self._unread
            if len(unread) >= _FRAME.size:
                length, has_descriptors = _FRAME.unpack_from(unread)
                stop = _FRAME.size + length
                if len(unread) >= stop:
                    self._unread = unread[stop:]
                    descriptors = self._descriptors.popleft() if has_descriptors else ()
                    if has_descriptors and not descriptors:
                        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
                    return memoryview(unread)[_FRAME.size : stop], descriptors
            self._receive_more()

    @property
    def holds_message(self) -> bool:
        """Whether there is something to ``receive`` that the socket does not show, as it was read already."""
        unread = self._unread
        return len(unread) >= _FRAME.size and len(unread) >= _FRAME.size + _FRAME.unpack_from(unread)[0]

    def _receive_more(self) -> None:
        try:
            more, rights, flags, _ = self._end.recvmsg(_RECEIVED_BYTES, _DESCRIPTORS_BYTES, _CLOSE_ON_EXEC)
        except ConnectionError:  # the other end was closed with something unread; all it sent was received
            raise EndOfChannel from None
        if rights or flags & _TRUNCATED:
            descriptors = array("i")
            for _, _, packed in rights:
                descriptors.frombytes(packed)
            if flags & _TRUNCATED:  # the process has no room for all of them, and the system drops the others
                _close_all(descriptors)
                descriptors = array("i")
            if not _CLOSE_ON_EXEC:
                for descriptor in descriptors:
                    os.set_inheritable(descriptor, False)
            self._descriptors.append(descriptors.tolist())
        if not more:
            raise EndOfChannel
        self._unread += more

    # --- waiting ---

    def wait(self, timeout_s: float | None) -> bool:
        """Block this thread until there is something to receive; False if there is nothing in time."""
        if self.holds_message:
            return True
        deadline = None if timeout_s is None else monotonic() + timeout_s
        while True:
            event = self._poll(select.POLLIN | (select.POLLOUT if self._unsent else 0), deadline)
            if event & ~select.POLLOUT:
                return True
            if not event:
                return False
            self.catch_up()

    def drain(self, deadline: float | None = None) -> bool:
        """Block this thread until all is sent, or the other end is closed; False at the deadline."""
        while self._unsent:
            if not self._poll(select.POLLOUT, deadline):
                return False
            self.catch_up()
        return True

    def _poll(self, events: int, deadline: float | None) -> int:
        poll = select.poll()
        poll.register(self, events)
        found = poll.poll(None if deadline is None else max(0.0, deadline - monotonic()) * 1000)
        return found[0][1] if found else 0

    def receive_before(self, deadline: float | None) -> bytes:
        """Block this thread until there is a message, and return it.

        Raises:
            TimeoutError: There was none at the deadline.
            EndOfChannel: There will be none.
        """
        while True:
            try:
                return bytes(self.receive()[0])
            except BlockingIOError:
                if not self.wait(None if deadline is None else deadline - monotonic()):
                    raise TimeoutError from None

    # --- the end ---

    @property
    def is_let_go(self) -> bool:
        """Whether the other end is closed, even if something that it sent is still to be read."""
        try:
            self._end.send(b"", _NO_SIGNAL)
        except OSError:
            return True
        return False

    def let_go(self, how: int = socket.SHUT_RDWR) -> None:
        """End the connection for both ends; what is queued can still be received."""
        # Unlike close this reaches through the copies that forked processes hold.
        with suppress(OSError):  # the other end has gone
            self._end.shutdown(how)

    def close(self) -> None:
        """Close this end. No thread waits on it any more."""
        with self._lock:
            self._forget_unsent()
        while self._descriptors:
            _close_all(self._descriptors.popleft())
        self._end.close()

    def abandon(self) -> None:
        """In a forked process: close the copy, without the lock, which a thread of the parent may hold."""
        self._end.close()


def _close_all(descriptors: Iterable[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def socketpair() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)


class LinkKind(IntEnum):
    """What a message of a link is."""

    CREDITS = 0  # so many objects more may be sent
    OBJECT = 1
    ERROR = 2  # an object, which says what the job raised; no other one follows
    END = 3  # no object follows


class Announced(NamedTuple):
    """A message that has come.

    Attributes:
        slot: Where its object is, or 0.
        at: Where in the slot the object's message lies, if it does.
        message: The object's message, if it does not.
        kind: What it is.
        credits: How many objects more the other end asks for.
    """

    slot: int
    at: int
    message: memoryview
    kind: int
    credits: int


# Ids of slots in a message; if more came free at once, the others go with the next one.
_MOST_FREED = 1000

# Where in its slot the object's message lies, the slot, what the message is, the credits, how many of the
# receiver's slots came free, how many of them it has to forget, and how many of the sender's. The ids of
# these follow, and the object's message, if it does not lie in the slot.
_HEAD = struct.Struct("<QIBHHHH")


class Link(MessageSocket):
    """One end of a connection over which objects go both ways.

    Args:
        end: A stream socket, which this closes.
        spare: How many free slots to keep of those that this end sends with.
        spare_bytes: How much free slots may hold, of either end.
    """

    def __init__(self, end: socket.socket, spare: int, spare_bytes: int = sys.maxsize) -> None:
        super().__init__(end)
        self._outbound = OutboundSlots(spare, spare_bytes)
        self._inbound = InboundSlots(spare_bytes)
        self._last_slot_bytes = 0
        self._is_closed = False

    def open_slot(self) -> OpenSlot | None:
        """Where to make the next object, which is assumed to be as large as the last one that had a slot."""
        with self._lock:
            return self._outbound.open(self._last_slot_bytes)

    def send(self, packed: Packed, kind: LinkKind = LinkKind.OBJECT) -> None:
        """Send an object; does nothing if either end is closed, which ``read`` reports.

        Args:
            packed: The object; nothing else refers to it here, except what user code keeps of it.
            kind: What it is.
        """
        with self._lock:
            if self._is_closed:
                return
            slot, descriptors, dropped = self._outbound.fill(packed)
            self._last_slot_bytes = packed.slot_bytes or self._last_slot_bytes
            try:
                self._post_all(kind, packed, slot, dropped, descriptors)
            finally:
                _close_all(descriptors)

    def grant(self, credits: int) -> None:
        """Ask for so many objects more; does nothing if either end is closed."""
        with self._lock:
            self._post_all(LinkKind.CREDITS, credits=credits)

    def end(self) -> None:
        """Report that no object follows; does nothing if either end is closed."""
        with self._lock:
            self._post_all(LinkKind.END)

    def _post_all(
        self,
        kind: LinkKind,
        packed: Packed | None = None,
        slot: int = 0,
        dropped: Sequence[int] = (),
        descriptors: Sequence[int] = (),
        credits: int = 0,
    ) -> None:
        """Send a message, with what the other end has to know of slots."""
        freed, retired = self._inbound.take_returned(_MOST_FREED)
        at, message = (0, b"") if packed is None else (packed.at, packed.message)
        head = _HEAD.pack(at, slot, kind, credits, len(freed), len(retired), len(dropped))
        if freed or retired or dropped:
            ids = (*freed, *retired, *dropped)
            head += struct.pack(f"<{len(ids)}I", *ids)
        self.post(head + message, descriptors)

    def read(self) -> Announced:
        """The next message; its object, if it has one, is for ``rebuild``. Raises like ``receive``."""
        message, descriptors = self.receive()
        at, slot, kind, credits, freed, retired, dropped = _HEAD.unpack_from(message)
        count = freed + retired + dropped
        if count:
            ids = struct.unpack_from(f"<{count}I", message, _HEAD.size)
            with self._lock:
                self._outbound.take_back(ids[:freed])
                self._outbound.retire(ids[freed : freed + retired])
            for each in ids[freed + retired :]:
                self._inbound.drop(each)
        for descriptor in descriptors:
            self._inbound.add(slot, descriptor)
        return Announced(slot, at, message[_HEAD.size + 4 * count :], kind, credits)

    def rebuild(self, announced: Announced) -> Any:
        """The object; its large parts lie in shared memory, which is reused once all of them are gone.

        Raises:
            Exception: It cannot be rebuilt.
        """
        return unpack(announced.message, self._inbound.lend(announced.slot), announced.at)

    def close(self) -> None:
        """Release everything except what received objects lie in. No thread waits on it any more."""
        with self._lock:
            self._is_closed = True
            self._outbound.clear()
        self._inbound.clear()
        super().close()


class Bell:
    """A pipe, which wakes what waits for its end. From any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ends: tuple[int, ...] = os.pipe()
        for end in self._ends:
            os.set_blocking(end, False)

    def fileno(self) -> int:
        """Readable when it has rung."""
        return self._ends[0]

    def ring(self, _: object = None) -> None:
        """Wake the receiver; does nothing once it is closed."""
        with self._lock, suppress(BlockingIOError):  # it has rung often
            if self._ends:  # else the numbers may be other files'
                os.write(self._ends[1], b".")

    def silence(self) -> None:
        """Not readable until it rings again. Called before looking for what has come: none is missed."""
        with suppress(BlockingIOError):  # it had not rung
            os.read(self.fileno(), 4096)

    def close(self) -> None:
        """Close the descriptors. Idempotent."""
        with self._lock:
            ends, self._ends = self._ends, ()
        _close_all(ends)


# Waiting on descriptors: a thread by ``poll``, a coroutine through its own loop.


class BatchSource(Protocol):
    """Something that ``poll`` can wait for."""

    def fileno(self) -> int: ...


def wait_readable(sources: Iterable[BatchSource], deadline: float | None) -> bool:
    """Block this thread until one of them is readable; false at the deadline."""
    poll = select.poll()
    for source in sources:
        poll.register(source.fileno(), select.POLLIN)
    return bool(poll.poll(None if deadline is None else max(0.0, deadline - monotonic()) * 1000))


async def wait_readable_async(sources: Iterable[BatchSource]) -> None:
    """Like ``wait_readable``, from a coroutine and without a deadline."""
    loop = asyncio.get_running_loop()
    ready = loop.create_future()
    descriptors = [source.fileno() for source in sources]
    for descriptor in descriptors:
        loop.add_reader(descriptor, _settle, ready)
    try:
        await ready
    finally:
        for descriptor in descriptors:
            loop.remove_reader(descriptor)


def _settle(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)
