"""Test your own pipelines: a server with the faults that you choose, and a check that nothing is left behind.

>>> from asyncloader import testing
>>> with testing.serve({"train-0.tar": content}, [testing.CutAt(1000, times=1)]) as server:
...     with testing.check_leaks():
...         read_all(server.url_of("train-0.tar"))
"""

from __future__ import annotations

from .faults import Capacity as Capacity
from .faults import ChangeObject as ChangeObject
from .faults import CutAt as CutAt
from .faults import Delay as Delay
from .faults import Drip as Drip
from .faults import Fault as Fault
from .faults import FlipBit as FlipBit
from .faults import GzipEncoding as GzipEncoding
from .faults import HangUp as HangUp
from .faults import Headers as Headers
from .faults import IgnoreRange as IgnoreRange
from .faults import Latency as Latency
from .faults import NoLength as NoLength
from .faults import Redirect as Redirect
from .faults import RequireQuery as RequireQuery
from .faults import Reset as Reset
from .faults import Stall as Stall
from .faults import Status as Status
from .faults import WrongETag as WrongETag
from .faults import WrongLength as WrongLength
from .faults import WrongRange as WrongRange
from .leaks import check_leaks as check_leaks
from .objects import Counters as Counters
from .objects import LoggedRequest as LoggedRequest
from .server import Server as Server
from .server import serve as serve
