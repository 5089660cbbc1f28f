"""A range of shards stays a range, as long as one of its names tells of all."""

from __future__ import annotations

import hashlib
import pickle

import pytest
from examples_drawn import examples
from hypothesis import given
from hypothesis import strategies as st

from asyncloader.stores.globs import has_special
from asyncloader.stores.names import Braces, ShardNames, is_even, names_digest
from asyncloader.stores.urls import check_web_url, is_remote_pattern, redact, scheme_of

_ROOTS = st.sampled_from(
    ["", "/", "/d/", "~/", "http:/", "http://", "https://me:pw@h:80/", "HTTPS://h/", "s3://b/", "S3://b",
     "gs:", "az://c/", "hf://datasets/o/n@v/", "file:///", "file:", "file://h/"]
)  # fmt: skip
_PIECES = st.text("a/.,0:@?#*[]%~\t s3", max_size=5)


def told_by(name: str) -> tuple[object, ...]:
    """What a name tells of itself, beside what it is called."""
    try:
        scheme = scheme_of(name)
        if scheme.is_web:
            check_web_url(name)
        local = scheme.is_local and (name.endswith("/") or has_special(name) or name.startswith("~"))
        return scheme, local or is_remote_pattern(name)
    except ValueError:
        return ("refused",)


@examples(1000)
@given(_ROOTS, _PIECES, st.lists(_PIECES, min_size=2, max_size=3).map(",".join) | st.just("8..11"), _PIECES)
def test_a_name_of_an_even_pattern_tells_of_all(root: str, before: str, inside: str, behind: str) -> None:
    pattern = f"{root}{before}{{{inside}}}{behind}"
    if not is_even(pattern):
        return
    names = list(Braces(pattern))
    assert len({told_by(name) for name in names}) == 1
    if len(told_by(names[0])) == 2:
        assert not told_by(names[0])[1], "what has to be looked up is not even"
        assert list(Braces(redact(pattern))) == [redact(name) for name in names]


@pytest.mark.parametrize(
    "pattern",
    [
        "s3://bucket/train-{000000..999999}.tar",
        "gs://bucket/part-{00000..99999}",
        "https://me:pw@host/train-{000..127}.tar.gz?sig=%2Fx",
        "http://[::1]:80/{train,val}/{0..9}.tar",
        "hf://datasets/o/n@main/{0..9}.jsonl",
        "/data/{a,b}/train-{0..9}.tar",
        "train-{0..9}.tar",
        "file:///data/train-{0..9}.tar",
    ],
)
def test_what_people_write_is_even(pattern: str) -> None:
    assert is_even(pattern)


@pytest.mark.parametrize(
    "pattern",
    [
        "{s3,gs}://bucket/x.tar",
        "s3://{a,b}/x.tar",
        "http://h{1..2}/x.tar",
        "s3://bucket/{a,b}/",
        "s3://bucket/x/{,a}",
        "s3://bucket/{a,b/}",
        "s3://bucket/{0..9}/*.tar",
        "http://h/x.tar?part={0..9}",
        "http://h/{a,b?x}.tar",
        "/data/{a,*}.tar",
        "~/{0..9}.tar",
        "file:///data/%2A{0..9}.tar",
        "a:{0..9}.tar",
        "s3://bucket/plain.tar",
    ],
)
def test_a_pattern_whose_names_may_differ_is_not_even(pattern: str) -> None:
    assert not is_even(pattern)


PARTS = (("a.tar", "b.tar"), Braces("s3://b/{0..3}.tar"), ("http://me:SENTINEL@h/c.tar?x=SENTINEL",))
NAMES = ("a.tar", "b.tar", *(f"s3://b/{n}.tar" for n in range(4)), "http://me:SENTINEL@h/c.tar?x=SENTINEL")


def test_names_are_a_sequence() -> None:
    names = ShardNames(PARTS)
    assert names == NAMES and tuple(names) == NAMES and len(names) == 7
    assert [names[index] for index in range(-7, 7)] == [*NAMES, *NAMES]
    assert names[1:-1:2] == NAMES[1:-1:2]
    assert names != NAMES[:-1] and names != NAMES[::-1] and names != "a"
    assert list(names.examples) == [*NAMES[:3], NAMES[-1]]
    assert pickle.loads(pickle.dumps(names)) == names
    assert "SENTINEL" not in repr(names)
    with pytest.raises(IndexError):
        names[7]


def test_the_digest_is_that_of_the_names_however_they_were_named() -> None:
    shown = "".join(f"{redact(name)}\n" for name in NAMES)
    expected = hashlib.sha256(shown.encode()).hexdigest()
    assert names_digest(ShardNames(PARTS)) == names_digest(NAMES) == expected
    signed = Braces("https://me:pw@h/{00000..09999}.tar?sig=1")
    assert names_digest(ShardNames([signed])) == names_digest(
        tuple(f"https://h/{n:05}.tar" for n in range(10_000))
    )


@given(st.lists(st.builds("{}{}".format, _ROOTS, _PIECES), min_size=1, max_size=5))
def test_the_digest_of_any_names_is_that_of_what_may_be_shown_of_each(names: list[str]) -> None:
    shown = "".join(f"{redact(name)}\n" for name in names)
    assert names_digest(tuple(names)) == hashlib.sha256(shown.encode()).hexdigest()


def test_a_name_that_is_no_text_has_a_digest_too() -> None:
    assert names_digest(("x\udcff.tar",)) != names_digest(("x.tar",))
