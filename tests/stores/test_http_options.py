"""The options of web servers, checked where they are given."""

from __future__ import annotations

from typing import Any

import pytest

from asyncloader.stores.http.backend import OPTIONS_APART, check_options


def test_headers_of_the_user_are_options() -> None:
    assert set(OPTIONS_APART) == {"headers"}
    check_options("https", {})
    check_options("https", {"headers": {"Authorization": "Bearer x", "X-Token": "\u00e4 b"}})


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({"header": {"a": "SENTINEL"}}, ValueError),
        ({"headers": "Authorization: SENTINEL"}, TypeError),
        ({"headers": {"A": b"SENTINEL"}}, TypeError),
        ({"headers": {"A": None}}, TypeError),
        ({"headers": {1: "SENTINEL"}}, TypeError),
        ({"headers": {"A": "SENTINEL\r\nRange: bytes=0-1"}}, ValueError),
        ({"headers": {"A": "SENTINEL\x00"}}, ValueError),
        ({"headers": {"A: SENTINEL": "x"}}, ValueError),
        ({"headers": {"A\n": "SENTINEL"}}, ValueError),
        ({"headers": {"": "SENTINEL"}}, ValueError),
        ({"headers": {"Range": "SENTINEL"}}, ValueError),
        ({"headers": {"if-match": "SENTINEL"}}, ValueError),
        ({"headers": {"Accept-encoding": "SENTINEL"}}, ValueError),
        ({"headers": {"HOST": "SENTINEL"}}, ValueError),
        ({"headers": {"a": "SENTINEL", "A": "SENTINEL"}}, ValueError),
    ],
)
def test_wrong_options_are_refused_without_their_values(
    options: dict[str, Any], kind: type[Exception]
) -> None:
    with pytest.raises(kind) as caught:
        check_options("https", options)
    assert "SENTINEL" not in str(caught.value)
