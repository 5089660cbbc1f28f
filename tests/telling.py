"""What an error can be made to tell, to look for secrets in."""

from __future__ import annotations

__all__ = ["all_told"]


def all_told(error: BaseException | None) -> str:
    """Every text in an error and in those that it came from, also where a traceback would hide it."""
    if error is None:
        return ""
    own = f"{error} {error!r} {error.args} {vars(error)} {getattr(error, '__notes__', '')}"
    return "\n".join([own, all_told(error.__cause__), all_told(error.__context__)])
