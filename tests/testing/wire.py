"""A client that hides nothing: sends bytes, and gives back the bytes and how the connection ended."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit

from asyncloader.testing import Server

__all__ = ["Answer", "connect", "get", "read_answer", "request_head"]


@dataclass(frozen=True)
class Answer:
    """``ended`` is "open", "closed" or "reset"."""

    status: int
    headers: dict[str, str]
    body: bytes
    ended: str


@contextmanager
def connect(server: Server) -> Iterator[socket.socket]:
    address = urlsplit(server.url)
    with socket.create_connection((address.hostname, address.port), timeout=5) as sock:
        yield sock


def request_head(key: str, method: str = "GET", **headers: str) -> bytes:
    lines = [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([f"{method} /{key} HTTP/1.1", "Host: test", *lines, "", ""]).encode()


def read_answer(sock: socket.socket, *, has_body: bool = True, to_end: bool = False) -> Answer:
    """Read by Content-Length where there is one, or whatever comes until the end of the connection."""
    received, ended = b"", "open"
    while ended == "open":
        head, found, body = received.partition(b"\r\n\r\n")
        status, headers = _parse(head) if found else (0, {})
        length = int(headers.get("content-length", -1)) if has_body else 0
        if found and not to_end and length >= 0 and len(body) >= length:
            break
        try:
            chunk = sock.recv(65536)
        except ConnectionResetError:
            ended = "reset"
        else:
            received += chunk
            ended = "open" if chunk else "closed"
    head, found, body = received.partition(b"\r\n\r\n")
    status, headers = _parse(head) if found else (0, {})
    return Answer(status, headers, body, ended)


def get(server: Server, key: str, method: str = "GET", **headers: str) -> Answer:
    """One request on a connection of its own, read to the end that the server makes."""
    with connect(server) as sock:
        sock.sendall(request_head(key, method, Connection="close", **headers))
        return read_answer(sock, to_end=True)


def _parse(head: bytes) -> tuple[int, dict[str, str]]:
    lines = head.decode("latin-1").split("\r\n")
    pairs = (line.partition(": ") for line in lines[1:])
    return int(lines[0].split()[1]), {name.lower(): value for name, _, value in pairs}
