"""Calls that are wrong, with secrets in them: what is said of them tells none.

That it does not is looked at after every test, in whatever ``pytest.raises`` catches: see ``sentinel``.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from sentinel import SENTINEL

import asyncloader as al

URL = f"http://me:{SENTINEL}@h/x.tar?sig={SENTINEL}"

WRONG: dict[str, tuple[Any, dict[str, Any]]] = {
    "bytes": (URL.encode(), {}),
    "bytes in a list": ([URL.encode()], {}),
    "an object in a list": ([SimpleNamespace(url=URL)], {}),
    "no format": (URL.replace(".tar", ".bin"), {}),
    "unknown format": (URL, {"format": "zip"}),
    "unknown scheme": (URL.replace("http", "ftp"), {}),
    "too long a range": (URL.replace("x.tar", "{0..99999999}.tar"), {}),
    "a host in a file": (URL.replace("http", "file"), {}),
    "one slash": (URL.replace("//", "/"), {}),
    "no slash": (URL.replace("//", ""), {}),
    "two colons": (URL.replace("://", ":://"), {}),
    "a space before": (" " + URL, {}),
    "unknown option": (URL, {"storage_options": {"header": SENTINEL}}),
    "unknown option of a bucket": ("s3://b/x.tar", {"storage_options": {"secret_acces_key": SENTINEL}}),
    "an option of a wrong type": ("s3://b/x.tar", {"storage_options": {"token": [SENTINEL]}}),
    "a header of a wrong type": (URL, {"storage_options": {"headers": {"A": SENTINEL.encode()}}}),
    "a bad header": (URL, {"storage_options": {"headers": {"A": f"{SENTINEL}\n"}}}),
    "options of a file": ("/x.tar", {"storage_options": {"token": SENTINEL}}),
    "a user in a bucket": (f"s3://me:{SENTINEL}@b/x/", {}),
    "a signed bucket": (f"s3://b/x.bin?sig={SENTINEL}", {}),
    "unknown scheme of an index": (URL, {"index": URL.replace("http", "ftp")}),
    "an index of a wrong type": (URL, {"index": URL.encode()}),
}


@pytest.mark.parametrize("name", WRONG)
def test_no_wrong_call_tells_a_secret(name: str) -> None:
    urls, options = WRONG[name]
    with pytest.raises((ValueError, TypeError, al.StoreError)):
        al.from_urls(urls, **options)
