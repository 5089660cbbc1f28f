"""The nouns every room shares: samples, the bytes that they are made of, and where to go on.

A *position* says where to reopen a stream so that it goes on with the next sample. It is a plain
dict of JSON values, and nests: each stage that has something to remember adds its own entries around
those of the stage before it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

__all__ = ["Buffer", "Position", "Sample"]

Sample: TypeAlias = dict[str, Any]
Position: TypeAlias = Mapping[str, Any]
Buffer: TypeAlias = bytes | bytearray | memoryview
