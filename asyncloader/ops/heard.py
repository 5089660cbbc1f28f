"""Endings that the user's functions raise, made errors: else a loop or a thread would end without a word."""

from __future__ import annotations

__all__ = ["Heard"]

_ENDINGS = (StopIteration, StopAsyncIteration, SystemExit)


class Heard:
    """Around a call of the user's function; used with ``with``.

    Raises:
        RuntimeError: The function raised ``StopIteration``, ``StopAsyncIteration`` or ``SystemExit``. The
            first two would be the end of whichever loop is next outside, so that the rest of a lane were
            missing. An exit in a thread or a worker ends that alone; as an error it has the sample named.
    """

    __slots__ = ()

    def __enter__(self) -> None: ...

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, _ENDINGS):
            text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
            # With the frames of the function: they are what messages tell, from a worker too.
            raise RuntimeError(f"the function raised {text}").with_traceback(error.__traceback__) from error
