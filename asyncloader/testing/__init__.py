"""Test your own pipelines: a server with the faults that you choose, and a check that nothing is left behind.

>>> from asyncloader import testing
>>> with testing.serve({"train-0.tar": content}, [testing.CutAt(1000, times=1)]) as server:
...     with testing.check_leaks():
...         read_all(server.url_of("train-0.tar"))
"""

from __future__ import annotations

from .faults import (
    Capacity,
    ChangeObject,
    CutAt,
    Delay,
    Drip,
    Fault,
    FlipBit,
    GzipEncoding,
    HangUp,
    Headers,
    IgnoreRange,
    Latency,
    NoLength,
    Redirect,
    RequireQuery,
    Reset,
    Stall,
    Status,
    WrongETag,
    WrongLength,
    WrongRange,
)
from .leaks import check_leaks
from .objects import Counters, LoggedRequest
from .server import Server, serve

__all__ = [
    "Capacity",
    "ChangeObject",
    "Counters",
    "CutAt",
    "Delay",
    "Drip",
    "Fault",
    "FlipBit",
    "GzipEncoding",
    "HangUp",
    "Headers",
    "IgnoreRange",
    "Latency",
    "LoggedRequest",
    "NoLength",
    "Redirect",
    "RequireQuery",
    "Reset",
    "Server",
    "Stall",
    "Status",
    "WrongETag",
    "WrongLength",
    "WrongRange",
    "check_leaks",
    "serve",
]
