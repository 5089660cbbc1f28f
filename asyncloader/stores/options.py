"""Storage options of all schemes, checked where they are given."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import urlsplit

from .http.options import HTTP_OPTIONS, check_http_options
from .hub.urls import check_hub_options
from .objects.options import check_bucket, check_options, plain_options
from .urls import scheme_of, split_key

__all__ = ["check_buckets", "check_storage_options"]


def check_storage_options(schemes: Iterable[str], options: Mapping[str, Any]) -> None:
    """Refuse options that one of the stores in use does not have.

    The ``headers`` of web servers are theirs alone, so that a recipe may mix them with a bucket.

    Raises:
        ValueError: An unknown name, or a value that cannot be.
        TypeError: A value of a wrong type. No message shows a value.
    """
    used = {"http" if scheme == "https" else scheme for scheme in schemes} - {"file"}
    others = {name: value for name, value in options.items() if name not in HTTP_OPTIONS}
    if "http" in used:
        check_http_options(
            {name: options[name] for name in options.keys() - others} if len(used) > 1 else options
        )
    for scheme in used - {"http"}:
        if scheme == "hf":
            check_hub_options(others)
        else:
            check_options(scheme, options if used == {scheme} else others)
    if options and not used:
        raise ValueError(f"local files have no storage options, but got {', '.join(sorted(options))}")


def check_buckets(urls: Iterable[str], options: Mapping[str, Any]) -> None:
    """Refuse an endpoint that names a bucket which the URLs name too.

    Args:
        urls: Of the shards.
        options: Checked ones.

    Raises:
        ValueError: It does.
    """
    endpoint = plain_options("s3", options).get("endpoint")
    if endpoint is None or not urlsplit(endpoint).path.strip("/"):
        return
    for root in {split_key(url)[0] for url in urls if scheme_of(url) == "s3"}:
        check_bucket(root.removeprefix("s3://").rstrip("/"), endpoint)
