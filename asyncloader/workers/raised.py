"""An error on its way from a worker to the parent: type, text, attributes, notes, frames, what it came from.

Pickled as usual an error loses all but the first three, and many cannot be rebuilt at all: pickle calls the
type with the ``args``, which may differ from what its ``__init__`` takes. So here it is made without
``__init__``; attributes that do not pickle are left out, and frames become a note. Where that fails, a
RuntimeError with its type and its text takes its place.
"""

from __future__ import annotations

import io
import pickle
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from ..errors import drop_frames, format_frames
from ..flow.channel import ChannelClosed, EndOfChannel
from .by_value import Homeward

Dumped: TypeAlias = tuple[bytes, bytes]
"""The error as it should arrive, and as it can always arrive."""

_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE: set for classes made by a ``class`` statement

# If these were raised in the parent, they would be mistaken for an end, or end more than the loop over
# batches.
_MISTAKEN = (StopIteration, StopAsyncIteration, EndOfChannel, ChannelClosed)


def dump_error(error: BaseException, place: str) -> Dumped:
    """What to send of an error.

    Args:
        error: As it was raised.
        place: Where, named in a note together with the frames.
    """
    stand_in = _stand_in(error)
    plain = _Form(stand_in, place, own=False, chained=False).dump(stand_in)
    return next(_attempts(error, stand_in, place), plain), plain


def dump_failure(error: BaseException, place: str, is_let_go: bool) -> Dumped | None:
    """What to send of an error that a job raised; None if it goes nowhere, since the pass has ended.

    Then it was raised while the job was being closed, and no other code reports it, so it is printed. But
    errors of reading shards are expected then.
    """
    is_expected = drop_frames(error)
    if not is_let_go:
        return dump_error(error, place)
    if not is_expected:
        traceback.print_exception(error)
    return None


def load_error(dumped: Dumped) -> Exception:
    """The error, or its stand-in where its type is not available here; a new one each time."""
    for pickled in dumped:
        try:
            error = pickle.loads(pickled)
        except Exception:  # its module is importable in the worker alone, say
            continue
        if isinstance(error, Exception):
            return error
    raise AssertionError("the stand-in for an error can be rebuilt anywhere")


def _attempts(error: BaseException, stand_in: Exception, place: str) -> Iterator[bytes]:
    """Forms that can be loaded again, the best first."""
    candidates: list[BaseException] = [stand_in]
    if isinstance(error, Exception) and not isinstance(error, _MISTAKEN):
        candidates.insert(0, error)
    for candidate in candidates:
        for own, chained in ((True, True), (False, True), (False, False)):
            try:
                pickled = _Form(candidate, place, own, chained).dump(candidate)
                loaded = pickle.loads(pickled)
            except Exception:
                continue
            if type(loaded) is type(candidate) and _text_of(loaded) == _text_of(candidate):
                yield pickled


def _stand_in(error: BaseException) -> Exception:
    """What is raised where the error cannot be."""
    kind = type(error)
    module = "" if kind.__module__ in ("__main__", "builtins") else f"{kind.__module__}."
    name = f"{module}{kind.__qualname__}"  # as a traceback names it
    text = _text_of(error)
    stand_in = RuntimeError(f"{name}: {text}" if text else name)
    for note in _notes_of(error):
        stand_in.add_note(note)
    if isinstance(error, BaseExceptionGroup):
        stand_in.add_note("".join(traceback.format_exception(error)))
        return stand_in
    stand_in.__context__, stand_in.__cause__ = error.__context__, error.__cause__
    stand_in.__suppress_context__ = error.__suppress_context__
    return stand_in.with_traceback(error.__traceback__)


def _text_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:
        return "<no text: str() failed>"


def _notes_of(error: BaseException) -> list[str]:
    notes = getattr(error, "__notes__", None)
    return [note for note in notes if isinstance(note, str)] if isinstance(notes, list) else []


@dataclass(frozen=True)
class _Form:
    """How an error and those that it refers to are pickled.

    Attributes:
        error: The outermost error; it always gets a note of the place, even without frames.
        place: Where it happened.
        own: Use the ``__reduce__`` of errors that define one.
        chained: Keep causes and contexts as objects; otherwise they are part of the note with the frames.
        tried: By id each value that was pickled on its own, and whether it pickles. Each value is tried once,
            even if several errors refer to it.
    """

    error: BaseException
    place: str
    own: bool
    chained: bool
    tried: dict[int, tuple[Any, bool]] = field(default_factory=dict)

    def dump(self, value: Any) -> bytes:
        """The pickle of the error, or of a value within."""
        file = io.BytesIO()
        pickler = _ErrorPickler(file, protocol=5)
        pickler.form = self
        pickler.dump(value)
        return file.getvalue()

    def reduce(self, error: BaseException) -> Any:
        make, arguments, attributes = self._parts(error)
        cause, context = error.__cause__, None if error.__suppress_context__ else error.__context__
        frames = format_frames(error)
        if not self.chained and (cause or context):
            frames = "".join(traceback.format_exception(error))
        if not self.chained:
            cause = context = None
        notes = _notes_of(error)
        if frames:
            notes.append(f"{self.place}:\n{frames}")
        elif error is self.error:
            notes.append(self.place)
        state = (attributes, notes, cause, context, error.__suppress_context__)
        # The state is set by a function once the pickle knows the object: errors may form cycles.
        return make, arguments, state, None, None, _complete

    def _parts(self, error: BaseException) -> tuple[Callable[..., Any], tuple[Any, ...], Any]:
        """How to make the error: a function, its arguments, and what ``__setstate__`` is given then."""
        kind, native = type(error), _native(type(error))
        plain = kind.__reduce__ is native.__reduce__ and kind.__reduce_ex__ is object.__reduce_ex__
        if self.own and not plain:
            made, arguments, state = (*error.__reduce_ex__(5), None)[:3]
            return made, arguments, state
        _, arguments, state = (*native.__reduce__(error), None)[:3]
        if isinstance(state, dict):
            known = {name: value for name, value in state.items() if name != "__notes__"}
            state = {name: value for name, value in known.items() if self._pickles(value)}
        kept = (value if self._pickles(value) else _Gone(value) for value in arguments)
        return _make, (kind, *kept), state

    def _pickles(self, value: Any) -> bool:
        if id(value) in self.tried:
            return self.tried[id(value)][1]
        # Kept, so that its id is not reused. In a cycle it is met again while it is tried: whether it pickles
        # is then found out by the outermost trial.
        self.tried[id(value)] = value, True
        try:
            pickle.loads(self.dump(value))
        except Exception:
            self.tried[id(value)] = value, False
        return self.tried[id(value)][1]


class _ErrorPickler(Homeward):
    """Pickles errors, wherever they are met, so that they are rebuilt as this module says."""

    form: _Form

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, BaseException):
            return self.form.reduce(value)
        return super().reducer_override(value)


def _native(kind: type[BaseException]) -> type[BaseException]:
    """The built-in exception that a class is derived from."""
    return next(base for base in kind.__mro__ if not base.__flags__ & _HEAP_TYPE)


def _make(kind: type[BaseException], *arguments: Any) -> BaseException:
    """An error with its ``args``, without ``__new__`` and ``__init__`` of its own."""
    native = _native(kind)
    error = native.__new__(kind, *arguments)
    native.__init__(error, *arguments)
    return error


def _complete(error: BaseException, state: tuple[Any, ...]) -> None:
    attributes, notes, cause, context, suppresses_context = state
    # Past a __setattr__ of the user's: a frozen dataclass refuses all of it.
    if isinstance(attributes, dict) and type(error).__setstate__ is BaseException.__setstate__:
        for name, value in attributes.items():
            BaseException.__setattr__(error, name, value)
    elif attributes is not None:
        error.__setstate__(attributes)
    if notes:
        vars(error)["__notes__"] = notes
    for name, value in (
        ("__context__", context),
        ("__cause__", cause),
        ("__suppress_context__", suppresses_context),
    ):
        vars(BaseException)[name].__set__(error, value)


class _Gone:
    """Stands in an error's ``args`` for a value that does not pickle, with the same text."""

    def __init__(self, value: object) -> None:
        self._shown, self._text = repr(value), str(value)

    def __repr__(self) -> str:
        return self._shown

    def __str__(self) -> str:
        return self._text
