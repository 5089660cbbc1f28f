"""Test your own pipelines: a server that misbehaves as told, and a check that nothing is left behind.

>>> from asyncloader import testing
>>> with testing.serve({"train-0.tar": content}, [testing.CutAt(1000, times=1)]) as server:
...     with testing.check_leaks():
...         read_all(server.url_of("train-0.tar"))
"""

from .faults import (
    Capacity,
    CutAt,
    Delay,
    Drip,
    Fault,
    HangUp,
    Headers,
    NoLength,
    Redirect,
    RequireQuery,
    Reset,
    Stall,
    Status,
)
from .latency import Latency
from .leaks import check_leaks
from .lies import ChangeObject, FlipBit, GzipEncoding, IgnoreRange, WrongETag, WrongLength, WrongRange
from .log import Counters, LoggedRequest
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
