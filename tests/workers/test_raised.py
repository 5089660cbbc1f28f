from __future__ import annotations

import threading
import traceback
from typing import Any

import pytest

from asyncloader.errors import FormatError, StoreError
from asyncloader.flow.channel import EndOfChannel
from asyncloader.workers.raised import dump_error, load_error

PLACE = "in worker 0 (pid 1)"


def sent(error: BaseException) -> Exception:
    """The error as it arrives, after it was raised and sent."""
    try:
        raise error
    except BaseException as raised:
        return load_error(dump_error(raised, PLACE))


class TwoArgumentsError(Exception):
    def __init__(self, code: int, reason: str) -> None:
        super().__init__(f"code {code}: {reason}")
        self.code = code


class OneArgumentError(ValueError):
    def __init__(self, name: str) -> None:
        super().__init__(f"no such name: {name}")


class KeywordError(OSError):
    def __init__(self, *, path: str) -> None:
        super().__init__(5, "cannot be read", path)


class ReducingError(Exception):
    def __init__(self, code: int) -> None:
        super().__init__(f"code {code}")
        self.code = code

    def __reduce__(self) -> Any:
        return ReducingError, (self.code,)


class WrongReduceError(ReducingError):
    def __reduce__(self) -> Any:
        raise TypeError("no")


class SilentError(Exception):
    def __str__(self) -> str:
        raise TypeError("no text")


class ResponseError(Exception):
    """Holds what does not pickle, as those of HTTP clients do."""

    def __init__(self, response: object, status: int) -> None:
        super().__init__(response)
        self.response = response
        self.status = status

    def __str__(self) -> str:
        return f"status {self.status}"


class LazyError(Exception):
    """Whose text needs what does not pickle."""

    def __init__(self, lock: Any) -> None:
        self.lock = lock

    def __str__(self) -> str:
        return f"held: {self.lock.locked()}"


@pytest.mark.parametrize(
    "error",
    [
        ValueError(),
        KeyError("a"),
        ValueError("two\nlines"),
        TwoArgumentsError(3, "cut"),
        OneArgumentError("x"),
        KeywordError(path="a.tar"),
        FileNotFoundError(2, "No such file", "a", None, "b"),
        ImportError("gone", name="n", path="p"),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid"),
        ReducingError(4),
        WrongReduceError(5),
        SilentError(),
        StoreError("cut", shard="a.tar", offset=3),
        FormatError("cut", shard="a.tar", sample=3),
        ValueError("x" * 5_000_000),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_keeps_its_type_text_and_attributes(error: Exception) -> None:
    arrived = sent(error)
    assert type(arrived) is type(error)
    shown, expected = (traceback.format_exception_only(type(one), one) for one in (arrived, error))
    assert shown[: len(expected)] == expected, "its notes come after it"
    if type(error) is not ReducingError:
        assert arrived.args == error.args
    expected_attributes = {name: value for name, value in vars(error).items() if name != "__notes__"}
    assert {
        name: value for name, value in vars(arrived).items() if name != "__notes__"
    } == expected_attributes
    for name in ("errno", "filename", "filename2", "name", "path", "start"):
        assert getattr(arrived, name, None) == getattr(error, name, None)


def test_frames_come_as_a_note_behind_the_errors_own() -> None:
    error = TwoArgumentsError(3, "cut")
    error.add_note("one\nof two lines")
    own, place = sent(error).__notes__
    assert own == "one\nof two lines"
    assert place.startswith(f"{PLACE}:\n  File ") and "raise error" in place
    assert "Traceback" not in place and "two lines" not in place, "nothing is told twice"


def test_what_does_not_pickle_is_left_out() -> None:
    lock = threading.Lock()
    arrived: Any = sent(ResponseError(lock, 404))
    assert type(arrived) is ResponseError and str(arrived) == "status 404" and arrived.status == 404
    assert not hasattr(arrived, "response") and repr(arrived.args) == f"({lock!r},)"
    plain = sent(ValueError("not", lock))
    assert str(plain) == str(ValueError("not", lock))


def test_an_error_whose_text_cannot_be_kept_with_its_type_keeps_the_text() -> None:
    error = ValueError("the cause")
    try:
        raise LazyError(threading.Lock()) from error
    except LazyError as raised:
        raised.add_note("mine")
        arrived = load_error(dump_error(raised, PLACE))
    assert type(arrived) is RuntimeError and str(arrived).endswith("LazyError: held: False")
    assert arrived.__notes__[0] == "mine" and "raise LazyError" in arrived.__notes__[1]
    assert str(arrived.__cause__) == "the cause"


@pytest.mark.parametrize("error", [SystemExit(3), StopIteration(3), EndOfChannel(3), KeyboardInterrupt(3)])
def test_what_would_be_taken_for_an_end_is_told_by_name(error: BaseException) -> None:
    arrived = sent(error)
    assert type(arrived) is RuntimeError and str(arrived).endswith(f"{type(error).__name__}: 3")


def test_what_an_error_came_from_comes_with_it() -> None:
    def fail() -> None:
        try:
            try:
                raise KeyError("first")
            except KeyError as error:
                raise TwoArgumentsError(1, "second") from error
        except TwoArgumentsError:
            raise ValueError("third")  # noqa: B904  # the context is what is tested

    try:
        fail()
    except ValueError as raised:
        arrived = load_error(dump_error(raised, PLACE))
    second = arrived.__context__
    assert type(second) is TwoArgumentsError and not arrived.__suppress_context__
    assert type(second.__cause__) is KeyError and second.__suppress_context__
    shown = "".join(traceback.format_exception(arrived))
    for line in (
        'raise KeyError("first")',
        'raise TwoArgumentsError(1, "second")',
        'raise ValueError("third")',
    ):
        assert shown.count(line) == 1, shown


def test_what_was_suppressed_stays_here() -> None:
    try:
        try:
            raise KeyError("a secret")
        except KeyError:
            raise ValueError("told") from None
    except ValueError as raised:
        pickled = dump_error(raised, PLACE)
    arrived = load_error(pickled)
    assert arrived.__suppress_context__ and arrived.__context__ is None
    assert b"a secret" not in pickled[0].replace(b'raise KeyError("a secret")', b"")


def test_an_error_that_came_from_itself_arrives() -> None:
    one, other = ValueError("one"), KeyError("other")
    one.__cause__, other.__cause__ = other, one
    arrived = sent(one)
    assert type(arrived) is ValueError and arrived.__cause__ is not None
    assert arrived.__cause__.__cause__ is arrived


class Client:
    """What an error of a library may hold, and what may hold the error in turn."""

    def __init__(self, held: object) -> None:
        self.held = held
        self.last: Exception | None = None


def test_errors_that_hold_each_other_arrive() -> None:
    one: Any = ValueError("one")
    one.first = one.second = other = KeyError("other")
    other.first = other.second = one  # type: ignore[attr-defined]
    arrived: Any = sent(one)
    assert type(arrived) is ValueError and type(arrived.first) is KeyError
    assert arrived.first is arrived.second and arrived.first.second is arrived


@pytest.mark.parametrize("held", [None, threading.Lock()], ids=["whole", "partly"])
def test_an_error_in_a_circle_with_its_client_arrives(held: object) -> None:
    error: Any = TwoArgumentsError(3, "cut")
    error.client = error.session = client = Client(held)
    client.last = error
    arrived: Any = sent(error)
    assert type(arrived) is TwoArgumentsError and arrived.code == 3
    if held is None:
        assert arrived.client is arrived.session and arrived.client.last is arrived
    else:
        assert not hasattr(arrived, "client") and not hasattr(arrived, "session")


def test_errors_in_errors_are_each_tried_once() -> None:
    error = ResponseError(threading.Lock(), 404)
    for _ in range(40):
        error = ResponseError(error, 404)
    arrived: Any = sent(error)
    for _ in range(40):
        arrived = arrived.response
    assert type(arrived) is ResponseError and not hasattr(arrived, "response")


def test_a_group_comes_with_its_members() -> None:
    group = ExceptionGroup("both", [TwoArgumentsError(1, "cut"), ResponseError(threading.Lock(), 404)])
    arrived = sent(group)
    assert type(arrived) is ExceptionGroup and str(arrived) == str(group)
    assert [type(one) for one in arrived.exceptions] == [TwoArgumentsError, ResponseError]
    assert [str(one) for one in arrived.exceptions] == ["code 1: cut", "status 404"]


def test_a_group_that_cannot_be_raised_here_tells_its_members() -> None:
    arrived = sent(BaseExceptionGroup("both", [KeyError("a"), SystemExit(3)]))
    assert type(arrived) is RuntimeError and "BaseExceptionGroup: both" in str(arrived)
    assert "KeyError: 'a'" in arrived.__notes__[0] and "SystemExit: 3" in arrived.__notes__[0]


def test_a_long_chain_of_errors_is_cut_rather_than_lost() -> None:
    error: Exception = ValueError("0")
    for number in range(1, 3000):
        newer = ValueError(str(number))
        newer.__cause__ = error
        error = newer
    arrived = sent(error)
    assert type(arrived) is ValueError and str(arrived) == "2999"


def test_each_loading_gives_an_error_of_its_own() -> None:
    dumped = dump_error(KeyError("a"), PLACE)
    assert load_error(dumped) is not load_error(dumped)
