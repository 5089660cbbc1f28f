"""A pass as it would go, without a byte moved: the plan as it is, a model of link, decoder and consumer.

Pure: no I/O, no clock, no task. Who reads what, which parts are requested when, how far ahead, and whose turn
it is are decided by the code that decides it in a pass. What is modelled is what takes time.
"""

from __future__ import annotations

from .outcome import Balance, Outcome, Resized
from .running import simulate, simulate_resize
from .setting import Link, Operator, Setting, ShardSize

__all__ = [
    "Balance",
    "Link",
    "Operator",
    "Outcome",
    "Resized",
    "Setting",
    "ShardSize",
    "simulate",
    "simulate_resize",
]
