"""The messages between a worker, its parent and the fork server.

All sockets are SEQPACKET: a message arrives whole or not at all, and its descriptors with it. All
messages are small; whatever is large (the job, a batch, an error) lies in a memfd that a message brings, or
that one before it has brought.
"""

from __future__ import annotations

import os
import pickle
import socket
import struct
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

__all__ = [
    "DONT_WAIT",
    "FROM_WORKER",
    "LARGEST_MESSAGE_BYTES",
    "MOST_FREED",
    "READY",
    "FromServer",
    "FromWorker",
    "Grant",
    "Setting",
    "receive_grant",
    "receive_message",
    "send_grant",
    "send_message",
    "socketpair",
    "store",
    "take_stored",
]

READY = b"ready"  # the fork server's first message; any other is a traceback

# Room for the tail of a traceback, the longest message.
LARGEST_MESSAGE_BYTES = 16 << 10

# A fork request's: the worker's connection, its lifeline, its job, its stack's pipe, what all are given.
_MOST_DESCRIPTORS = 5

# Freed slots in one grant; when more came free at once, the next grant takes the rest.
MOST_FREED = 1000

# FromWorker, slot, and where in it the message about a batch lies; or that follows, if it is short.
FROM_WORKER = struct.Struct("<BIQ")

# Plain numbers: Python's flags of sockets are enumerations, and to join two takes as long as a system call.
DONT_WAIT = int(socket.MSG_DONTWAIT)
_CLOSE_ON_EXEC = int(socket.MSG_CMSG_CLOEXEC)
_NO_SIGNAL = int(socket.MSG_NOSIGNAL)
_DESCRIPTORS_BYTES = socket.CMSG_SPACE(_MOST_DESCRIPTORS * array("i").itemsize)


class FromWorker(IntEnum):
    """What a worker says to its parent, each with a slot, or 0 for none."""

    BATCH = 1  # with the slot's descriptor, if the slot is new; the slot holds what the message does not
    DROP = 2  # the slot is unmapped
    ERROR = 3  # like BATCH, of what the job raised; the worker ends
    END = 4  # the job ended normally, and the worker ends


class FromServer(IntEnum):
    """What the fork server says to the parent about one worker, as the first byte of the message."""

    PID = 1  # the worker was forked
    EXIT = 2  # it ended, with this exit code
    FAILED = 3  # it could not be forked, for this reason


@dataclass(frozen=True, slots=True)
class Setting:
    """What a worker needs to feel at home: the parent's surroundings when the worker was asked for."""

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
    # Not socket.send_fds: it ignores its flags, as recv_fds does. NOSIGNAL: a program may have made
    # SIGPIPE deadly again.
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
    """Send it, or else raise BlockingIOError if too many of them are unread."""
    credits, freed, retired = grant
    numbers = credits, len(freed), *freed, *retired
    end.send(struct.pack(f"<{len(numbers)}I", *numbers), DONT_WAIT | _NO_SIGNAL)


def receive_grant(end: socket.socket, flags: int) -> Grant | None:
    """One grant; None when the parent wants no more."""
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
