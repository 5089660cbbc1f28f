"""How patient the reading is with a network: time-outs, attempts and hedging; pure."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

__all__ = ["NetworkPolicy"]


@dataclass(frozen=True, kw_only=True)
class NetworkPolicy:
    """How long to wait for a server, how often to ask it again, and when to ask twice.

    The defaults suit object stores and web servers over any distance; a test of a pipeline's own faults
    wants shorter ones. A *part* is a range of up to 8 MiB that one request asks for.

    Args:
        connect_s: Seconds to connect, TLS included.
        first_byte_s: Seconds, after those to connect, to the first byte of the answer. 30, since stores
            under load answer in tens of seconds rather than not at all.
        stall_s: Seconds in which at least ``stall_bytes`` must come once a body has begun. Only time spent
            waiting for the server counts, so a slow consumer is no stall.
        stall_bytes: Fewer than this in ``stall_s`` is no progress: a body that drips is as dead as one that
            stopped. 16 KiB in 15 s is slower than any line that anybody trains over.
        attempts: Requests for a part in all. Six with growing pauses span the failover of a store's node.
        deadline_s: Seconds after a part's first failure in which another attempt may begin.
        backoff_s: Base in seconds of the pauses between attempts, which grow and are drawn at random.
        hedge: Ask a second time for a part that the consumer waits for when its bytes take longer than
            those of 95 % of the requests before, and take whichever comes first. At most 5 % of requests.

    Raises:
        ValueError: A time that is not positive, or less than one attempt.
        TypeError: A value of another type.
    """

    connect_s: float = 10.0
    first_byte_s: float = 30.0
    stall_s: float = 15.0
    stall_bytes: int = 16 << 10
    attempts: int = 6
    deadline_s: float = 60.0
    backoff_s: float = 1.0
    hedge: bool = True

    @property
    def answer_s(self) -> float:
        """Seconds to the first byte of an answer, from before the connection."""
        return self.connect_s + self.first_byte_s

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name == "hedge":
                if not isinstance(value, bool):
                    raise TypeError(f"hedge should be True or False, but got hedge={value!r}")
                continue
            kinds = (int, float) if field.name.endswith("_s") else (int,)
            if isinstance(value, bool) or not isinstance(value, kinds):
                raise TypeError(f"{field.name} should be a number, but got {field.name}={value!r}")
            if not (value > 0 and math.isfinite(value)):
                raise ValueError(f"{field.name} should be positive, but got {field.name}={value!r}")
