"""What is closed when a ``with`` block is left, of both kinds."""

from __future__ import annotations

from typing import Self

from .._flow.aside import run_aside

__all__ = ["Closing"]


class Closing:
    """A context manager that closes itself."""

    def close(self) -> None:
        """Free what it holds. Idempotent."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await run_aside(self.close, "asyncloader-close")
