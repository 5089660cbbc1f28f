"""What an error can be made to tell, to look for secrets in."""

from __future__ import annotations

__all__ = ["all_told"]


def all_told(error: BaseException | None) -> str:
    """Every text in an error and in those that it came from, also where a traceback would hide it.

    Without the lines of code and the local variables that a traceback may show: those are the test's own.
    """
    if error is None:
        return ""
    own = f"{error} {error!r} {error.args} {vars(error)} {getattr(error, '__notes__', '')}"
    members = error.exceptions if isinstance(error, BaseExceptionGroup) else ()
    return "\n".join([own, *map(all_told, (*members, error.__cause__, error.__context__))])
