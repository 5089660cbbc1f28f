from __future__ import annotations

import pytest

from asyncloader.errors import StoreError
from asyncloader.stores.failures import (
    ThrottledError,
    TransientError,
    changed,
    http_time_s,
    refused,
    wait_asked,
)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        *[(status, StoreError) for status in (300, 400, 401, 403, 404, 405, 410, 412, 416, 451, 501, 505)],
        *[(status, TransientError) for status in (408, 425, 500, 502, 504, 507, 520, 599)],
        (429, ThrottledError),
        (503, ThrottledError),
    ],
)
def test_a_status_tells_whether_asking_again_may_help(status: int, kind: type[StoreError]) -> None:
    error = refused("https://h/x?sig=SENTINEL", 7, status, retry_after_s=3.0)
    assert type(error) is kind
    assert (error.shard, error.status, error.offset) == ("https://h/x", status, 7)
    assert getattr(error, "retry_after_s", "none") == ("none" if kind is StoreError else 3.0)


def test_a_bucket_of_another_region_is_told_what_to_give() -> None:
    assert "as the option region, or endpoint" in str(refused("s3://b/x", 0, 301))


def test_a_status_without_a_name_is_told_by_its_number() -> None:
    assert str(refused("https://h/x", 0, 599)).startswith("the server answered 599 [")


NOW = "Wed, 21 Oct 2015 07:28:00 GMT"


@pytest.mark.parametrize(
    ("retry_after", "date", "now_s", "wait_s"),
    [
        (None, None, 0.0, None),
        ("", None, 0.0, None),
        ("0", None, 0.0, 0.0),
        (" 120 ", None, 0.0, 120.0),
        ("1.5", None, 0.0, 1.5),
        ("-5", None, 0.0, None),
        ("soon", None, 0.0, None),
        ("9" * 400, None, 0.0, None),
        ("nan", None, 0.0, None),
        ("Wed, 21 Oct 2015 07:28:30 GMT", NOW, 0.0, 30.0),
        ("Wed, 21 Oct 2015 07:27:00 GMT", NOW, 0.0, 0.0),
        ("Wednesday, 21-Oct-15 07:28:30 GMT", NOW, 0.0, 30.0),
        ("Wed Oct 21 07:28:30 2015", NOW, 0.0, 30.0),
        ("Wed, 21 Oct 2015 07:28:30 GMT", None, 1445412480.0, 30.0),
        ("Wed, 21 Oct 2015 07:28:30 GMT", "yesterday", 1445412481.0, 29.0),
        ("Wed, 21 Oct 99999 07:28:30 GMT", NOW, 0.0, None),
    ],
)
def test_retry_after_is_seconds_or_a_date_and_never_negative(
    retry_after: str | None, date: str | None, now_s: float, wait_s: float | None
) -> None:
    assert wait_asked(retry_after, date, now_s) == wait_s


def test_dates_are_utc() -> None:
    assert http_time_s(NOW) == http_time_s("Wed, 21 Oct 2015 07:28:00") == 1445412480
    assert http_time_s(None) is http_time_s("never") is None


def test_a_change_is_told_by_the_kind_of_version() -> None:
    assert 'its ETag was "a", now "b"' in str(changed("https://h/x", 0, '"a"', '"b"'))
    dated = str(changed("https://h/x", 0, "last-modified:Monday", "last-modified:Tuesday"))
    assert "its time of last modification was Monday, now Tuesday" in dated
    assert "now another" in str(changed("https://h/x", 0, '"a"', None, status=412))
