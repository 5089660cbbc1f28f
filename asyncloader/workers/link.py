"""One end of a connection between two processes, over which objects go both ways.

Laws:

* Sending never blocks. What the socket does not take is kept here, and sent before the next object, or while
  this end waits to receive: two ends that send much to each other never wait for one another.
* Large memory lies in slots of the sender's; the next message the other way names those that came free.
* One message is one object. What was sent whole is received, even if the sender has died since; the end comes
  after it.
* One thread at a time receives; any may send.
"""

from __future__ import annotations

import asyncio
import errno
import os
import pickle
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
from typing import Any, NamedTuple, Protocol, TypeAlias

from ..flow.channel import EndOfChannel
from .packing import Packed, unpack
from .slots import InboundSlots, OpenSlot, OutboundSlots

# The messages between a worker, its parent and the fork server.
#
# All sockets are SEQPACKET: a message arrives whole or not at all, and its descriptors with it. All messages
# are small; what is large (the job, a batch, an error) lies in a memfd, whose descriptor comes with the
# message or came with an earlier one.

READY = b"ready"  # the fork server's first message; any other is a traceback

# Room for the tail of a traceback, the longest message.
LARGEST_MESSAGE_BYTES = 16 << 10

# Those of a fork request: the worker's connection, its lifeline, its job, its stack's pipe, what all jobs
# share.
_MOST_DESCRIPTORS = 5

# Freed slots in one grant; if more came free at once, the others go with the next grant.
MOST_FREED = 1000

# FromWorker, slot, and where in the slot the message about a batch lies; a short one follows here instead.
FROM_WORKER = struct.Struct("<BIQ")

# Plain numbers: Python's flags of sockets are enumerations, and joining two takes as long as a system call.
DONT_WAIT = int(socket.MSG_DONTWAIT)
_CLOSE_ON_EXEC = int(socket.MSG_CMSG_CLOEXEC)
_NO_SIGNAL = int(socket.MSG_NOSIGNAL)
_DESCRIPTORS_BYTES = socket.CMSG_SPACE(_MOST_DESCRIPTORS * array("i").itemsize)


class FromWorker(IntEnum):
    """What a worker sends to its parent, each with a slot, or 0 for none."""

    BATCH = 1  # with the slot's descriptor, if the slot is new; the slot holds what the message does not
    DROP = 2  # the slot is unmapped
    ERROR = 3  # like BATCH, of what the job raised; the worker ends
    END = 4  # the job ended normally, and the worker ends


class FromServer(IntEnum):
    """What the fork server reports to the parent of one worker, as the first byte of the message."""

    PID = 1  # the worker was forked
    EXIT = 2  # it ended, with this exit code
    FAILED = 3  # it could not be forked, for this reason


@dataclass(frozen=True, slots=True)
class Setting:
    """What a worker takes over from its parent, as it was when the pool was started."""

    number: int
    prefetch: int
    prefetch_bytes: int
    spare_bytes: int
    path: list[str]
    argv: list[str]
    directory: str
    environment: dict[str, str]


def socketpair() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def send_message(end: socket.socket, *parts: bytes, descriptors: Sequence[int] = (), flags: int = 0) -> None:
    """Send one message, with duplicates of the descriptors."""
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", descriptors))] if descriptors else []
    # Not socket.send_fds: it ignores its flags, as recv_fds does. NOSIGNAL: a program may have set SIGPIPE to
    # kill it.
    end.sendmsg(parts, rights, flags | _NO_SIGNAL)


def receive_message(end: socket.socket, flags: int = 0) -> tuple[bytes, Sequence[int]]:
    """One message and its descriptors; empty when the other end is closed."""
    # CLOEXEC: a program that a job runs must not keep the worker's sockets open.
    message, rights, _, _ = end.recvmsg(LARGEST_MESSAGE_BYTES, _DESCRIPTORS_BYTES, flags | _CLOSE_ON_EXEC)
    if not rights:
        return message, ()
    descriptors = array("i")
    for _, _, packed in rights:
        descriptors.frombytes(packed)
    return message, descriptors.tolist()


class Grant(NamedTuple):
    """The parent's only message to a worker.

    Attributes:
        credits: So many batches more.
        freed: Slots that are free again.
        retired: Slots to forget.
    """

    credits: int
    freed: Sequence[int]
    retired: Sequence[int]


def send_grant(end: socket.socket, grant: Grant) -> None:
    """Send it; raises BlockingIOError if too many of them are unread."""
    credits, freed, retired = grant
    numbers = credits, len(freed), *freed, *retired
    end.send(struct.pack(f"<{len(numbers)}I", *numbers), DONT_WAIT | _NO_SIGNAL)


def receive_grant(end: socket.socket, flags: int) -> Grant | None:
    """One grant; None when the parent has closed its end."""
    message = end.recv(LARGEST_MESSAGE_BYTES, flags)
    if not message:
        return None
    credits, count, *slots = struct.unpack(f"<{len(message) // 4}I", message)
    return Grant(credits, slots[:count], slots[count:])


def store(*items: Any) -> int:
    """A new memfd with the items' pickles one after the other."""
    descriptor = os.memfd_create("asyncloader-job", os.MFD_CLOEXEC)
    try:
        with open(descriptor, "wb", closefd=False) as file:
            for item in items:
                pickle.dump(item, file, protocol=5)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def take_stored(descriptor: int) -> tuple[Any, Any]:
    """The two items stored, and close the descriptor."""
    with open(descriptor, "rb") as file:
        file.seek(0)
        return pickle.load(file), pickle.load(file)


Announced: TypeAlias = tuple[int, int, memoryview]
"""An object that has come: its slot, or 0, where in that its message lies, and the message if it does not."""

# Sending never waits for room in the socket, so that longer messages than those of streams may go without a
# slot. With the ids of slots they have to fit into ``LARGEST_MESSAGE_BYTES``.
MOST_INLINE_BYTES = 12 << 10
_MOST_FREED = 250

# Where in its slot the object's message lies, and the slot; how many of the receiver's slots came free, how
# many of them it has to forget, and how many of the sender's. The ids of these follow, and the message, if it
# does not lie in the slot.
_HEAD = struct.Struct("<QIHHH")


class _Unsent(NamedTuple):
    parts: Sequence[bytes]
    descriptor: int | None


class Link:
    """One end of a connection.

    Args:
        connection: A SEQPACKET socket, which this end closes.
        spare: How many free slots to keep of those that this end sends with.
    """

    def __init__(self, connection: socket.socket, spare: int) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self._outbound = OutboundSlots(spare, sys.maxsize)
        self._inbound = InboundSlots(sys.maxsize)
        self._unsent = deque[_Unsent]()
        self._last_slot_bytes = 0
        self._is_closed = False

    def fileno(self) -> int:
        """Readable when there is something to ``read``."""
        return self._connection.fileno()

    # --- sending ---

    def open_slot(self) -> OpenSlot | None:
        """Where to make the next object, which is assumed to be as large as the last one that had a slot."""
        with self._lock:
            return self._outbound.open(self._last_slot_bytes)

    def send(self, packed: Packed, made_in: OpenSlot | None = None) -> None:
        """Send an object; does nothing if either end is closed, which ``read`` reports.

        Args:
            packed: The object; nothing else refers to it here, except what user code keeps of it.
            made_in: The slot that was opened to make it in.
        """
        with self._lock:
            if self._is_closed:
                return
            slot, descriptor, dropped = self._outbound.fill(packed, made_in)
            self._last_slot_bytes = packed.slot_bytes or self._last_slot_bytes
            freed, retired = self._inbound.take_freed(_MOST_FREED), self._inbound.take_retired(_MOST_FREED)
            ids = (*freed, *retired, *dropped)
            head = _HEAD.pack(packed.at, slot, len(freed), len(retired), len(dropped))
            head += struct.pack(f"<{len(ids)}I", *ids)
            self._unsent.append(_Unsent((head, packed.message), descriptor))
            self._send_unsent()

    @property
    def is_behind(self) -> bool:
        """Whether something waits for the socket to take it."""
        return bool(self._unsent)

    def catch_up(self) -> None:
        """Send as much of what waits as the socket takes."""
        with self._lock:
            self._send_unsent()

    def _send_unsent(self) -> None:
        while self._unsent:
            parts, descriptor = self._unsent[0]
            descriptors = () if descriptor is None else (descriptor,)
            try:
                send_message(self._connection, *parts, descriptors=descriptors, flags=DONT_WAIT)
            except BlockingIOError:
                return
            except OSError:  # the other end has gone, or this one was closed
                self._forget_unsent()
                return
            self._unsent.popleft()
            if descriptor is not None:
                os.close(descriptor)

    def _forget_unsent(self) -> None:
        while self._unsent:
            descriptor = self._unsent.popleft().descriptor
            if descriptor is not None:
                os.close(descriptor)

    # --- receiving ---

    def read(self) -> Announced:
        """What announces the next object, for ``rebuild``.

        Raises:
            BlockingIOError: There is none yet.
            EndOfChannel: There will be none: the other end is closed, or one of them was let go.
            OSError: This process has too many open files to receive it; it is lost.
        """
        try:
            message, descriptors = receive_message(self._connection, DONT_WAIT)
        except ConnectionError:
            # Raised once, before what is queued: the other end closed with something unread.
            message, descriptors = receive_message(self._connection, DONT_WAIT)
        if not message:
            raise EndOfChannel
        at, slot, freed, retired, dropped = _HEAD.unpack_from(message)
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
        if slot not in self._inbound:
            # The kernel omits descriptors that the process has no room for, without an error.
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return slot, at, memoryview(message)[_HEAD.size + 4 * count :]

    def rebuild(self, announced: Announced) -> Any:
        """The object; its large parts lie in shared memory, which is reused once all of them are gone.

        Raises:
            Exception: It cannot be rebuilt.
        """
        slot, at, message = announced
        return unpack(message, self._inbound.lend(slot), at)

    def wait(self, timeout_s: float | None) -> bool:
        """Block this thread until there is something to ``read``; False if there is nothing in time."""
        deadline = None if timeout_s is None else monotonic() + timeout_s
        while True:
            event = self._poll(select.POLLIN | (select.POLLOUT if self._unsent else 0), deadline)
            if event & ~select.POLLOUT:
                return True
            if not event:
                return False
            self.catch_up()

    def drain(self) -> None:
        """Block this thread until all is sent, or the other end is closed."""
        while self._unsent:
            self._poll(select.POLLOUT, None)
            self.catch_up()

    def _poll(self, events: int, deadline: float | None) -> int:
        poll = select.poll()
        poll.register(self._connection, events)
        found = poll.poll(None if deadline is None else max(0.0, deadline - monotonic()) * 1000)
        return found[0][1] if found else 0

    # --- the end ---

    @property
    def is_let_go(self) -> bool:
        """Whether the other end is closed, even if something that it sent is still to be read."""
        return bool(self._poll(0, 0.0))

    def let_go(self) -> None:
        """End the connection for both ends; what is queued can still be received."""
        # Unlike close this reaches through the copies that forked processes hold.
        with suppress(OSError):  # the other end has gone
            self._connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Release everything except what received objects lie in. No thread waits on it any more."""
        with self._lock:
            self._is_closed = True
            self._forget_unsent()
            self._outbound.clear()
        self._inbound.clear()
        self._connection.close()


# Waiting on descriptors: a thread by ``poll``, a coroutine through its own loop.


class BatchSource(Protocol):
    """Something that ``poll`` can wait for."""

    def fileno(self) -> int: ...


def wait_readable(sources: Iterable[BatchSource], deadline: float | None) -> list[int]:
    """Block this thread until one of them is readable; the descriptors of those, none at the deadline."""
    poll = select.poll()
    for source in sources:
        poll.register(source.fileno(), select.POLLIN)
    ready = poll.poll(None if deadline is None else max(0.0, deadline - monotonic()) * 1000)
    return [descriptor for descriptor, _ in ready]


async def wait_readable_async(sources: Iterable[BatchSource]) -> list[int]:
    """Like ``wait_readable``, from a coroutine and without a deadline."""
    loop = asyncio.get_running_loop()
    ready = loop.create_future()
    descriptors = [source.fileno() for source in sources]
    for descriptor in descriptors:
        loop.add_reader(descriptor, _settle, ready, descriptor)
    try:
        return [await ready]
    finally:
        for descriptor in descriptors:
            loop.remove_reader(descriptor)


def _settle(ready: asyncio.Future[int], descriptor: int) -> None:
    if not ready.done():
        ready.set_result(descriptor)
