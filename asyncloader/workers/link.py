"""One end of a connection between two processes, over which objects go both ways.

Laws:

* Nobody waits to send. What the socket does not take waits here, and goes before the next object, or while
  this end waits to receive: two ends that have much to tell each other never wait for one another.
* What is large lies in slots, each way in slots of the sender's; those that came free are told with the next
  message the other way.
* One message is one object. What was sent whole is received, whatever became of the sender, and then the
  end is told.
* One thread at a time receives, and any may send.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import struct
import sys
import threading
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from time import monotonic
from typing import Any, NamedTuple, TypeAlias

from .._flow.channel import EndOfChannel
from ._wire import DONT_WAIT, receive_message, send_message, socketpair
from .packing import Packed, unpack
from .pages import OpenSlot
from .slots import InboundSlots, OutboundSlots

__all__ = ["MOST_INLINE_BYTES", "Announced", "Link", "socketpair"]

Announced: TypeAlias = tuple[int, int, memoryview]
"""An object that has come: its slot, or 0, where in that its message lies, and the message if it does not."""

# Nobody waits for room in the socket, so that longer messages than those of streams may go without a slot.
# With the ids of slots they have to fit into ``LARGEST_MESSAGE_BYTES``.
MOST_INLINE_BYTES = 12 << 10
_MOST_FREED = 250

# Where in its slot the object's message lies, and the slot; how many of the receiver's slots came free, how
# many of them it is to forget, and how many of the sender's. The ids of these follow, and the message, if it
# does not lie in the slot.
_HEAD = struct.Struct("<QIHHH")


class _Unsent(NamedTuple):
    parts: Sequence[bytes]
    descriptor: int | None


class Link:
    """One end of a connection.

    Args:
        connection: A SEQPACKET socket, from now on this end's own.
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
        """Where to make the next object, which is taken to be as large as the last one that had a slot."""
        with self._lock:
            return self._outbound.open(self._last_slot_bytes)

    def send(self, packed: Packed, made_in: OpenSlot | None = None) -> None:
        """Send an object; nothing, if either end has gone, which ``read`` tells of.

        Args:
            packed: Nothing else of the object is held here, but for what user code keeps of it.
            made_in: The slot that it was made in, or was to be.
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
        """Send of what waits as much as the socket takes."""
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
            EndOfChannel: There will be none, as the other end has gone, or either was let go.
            OSError: This process has too many open files to receive it; it is lost.
        """
        try:
            message, descriptors = receive_message(self._connection, DONT_WAIT)
        except ConnectionError:
            # Told once, before what is queued: the other end went with something unread.
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
            # The kernel leaves out descriptors that the process has no room for, and says no more.
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return slot, at, memoryview(message)[_HEAD.size + 4 * count :]

    def rebuild(self, announced: Announced) -> Any:
        """The object; what is large in it lies in shared memory, which is used again once all of it is gone.

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
        """Block this thread until all is sent, or nobody is there to take it."""
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
        """Whether the other end has gone, or let go, even if something that it sent is still to be read."""
        return bool(self._poll(0, 0.0))

    def let_go(self) -> None:
        """End the connection for both ends; what is queued can still be received."""
        # Unlike close this reaches through the copies that forked processes hold.
        with suppress(OSError):  # the other end has gone
            self._connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Give everything back but what lies under received objects. Nobody waits on it any more."""
        with self._lock:
            self._is_closed = True
            self._forget_unsent()
            self._outbound.clear()
        self._inbound.clear()
        self._connection.close()
