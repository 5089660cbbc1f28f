"""What follows from the text of a URL or path: its scheme, its parts, and what of it may be shown; pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from urllib.parse import unquote, urlsplit

from .globs import has_special


@dataclass(frozen=True, slots=True)
class Scheme:
    """A row of the table of schemes. A new store is a file and its rows here.

    Attributes:
        name: What stands before ``://``.
        backend: The module of this package that serves it, as ``router.Backend`` describes; None for local
            files, which have neither server nor options.
        client: The module that imports its client, which worker processes import early.
        is_listed: Whether the store can list its objects. Where it cannot, each shard has to be named.
        is_web: Whether a URL has the parts and escapes of RFC 3986; elsewhere a key is taken as written.
        is_renewed: Whether URLs may be signed for a time, or lead to such URLs.
        is_writable: Whether ``convert`` can put objects there.
        has_one_client: Whether one client serves all its servers and buckets.
        own_options: Storage options of this store alone. Others in the same dataset ignore them.
    """

    name: str
    backend: str | None
    client: str
    is_listed: bool = False
    is_web: bool = False
    is_renewed: bool = False
    is_writable: bool = False
    has_one_client: bool = False
    own_options: frozenset[str] = frozenset()

    @property
    def is_local(self) -> bool:
        """Whether it names files of this machine."""
        return self.backend is None


_OBJECTS = partial(
    Scheme, backend="objects.backend", client="objects.store", is_listed=True, is_writable=True
)
# Its own options let a dataset mix web servers with a bucket.
_WEB = partial(
    Scheme, backend="http.backend", client="http.client", is_web=True, is_renewed=True, has_one_client=True
)
_HEADERS = frozenset({"headers"})

SCHEMES: Mapping[str, Scheme] = {
    row.name: row
    for row in (
        _WEB("http", own_options=_HEADERS),
        _WEB("https", own_options=_HEADERS),
        _OBJECTS("s3"),
        _OBJECTS("gs"),
        _OBJECTS("az"),
        Scheme("hf", "hub", "http.client", is_listed=True, is_renewed=True, has_one_client=True),
        Scheme("file", None, "local"),
    )
}

_AZURE = "az://container/key, with the account as storage_options={'account_name': ...}"

#: What to write for the schemes of other libraries and services.
ELSEWHERE: Mapping[str, str] = {
    "gcs": "gs://bucket/key",
    "s3a": "s3://bucket/key",
    "s3n": "s3://bucket/key",
    "r2": "s3://bucket/key, with storage_options={'endpoint': 'https://ACCOUNT.r2.cloudflarestorage.com'}",
    "azure": _AZURE,
    "abfs": _AZURE,
    "abfss": _AZURE,
    "wasb": _AZURE,
    "wasbs": _AZURE,
}


#: The index beside the shards, which is no shard itself.
INDEX_NAME = "asyncloader-index.json"

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
# No shard has such a name, but a URL with its signature may be mistyped so, and would be shown. A path that
# begins with a scheme and two slashes has to be written with ./ in front.
_MISTYPED = re.compile(rf"\s*({'|'.join([*SCHEMES, *ELSEWHERE])})(?:\s*:|[;.,]?//)", re.IGNORECASE)
#: A URL without user info, query and fragment that parsing does not change: it is shown as it is.
PLAIN = r"[a-z][a-z0-9+.-]*://[!\"$->A-Z^-~]*"
_PLAIN = re.compile(PLAIN)


#: The schemes whose URLs have the parts of RFC 3986, and those of this machine.
WEB = frozenset(scheme.name for scheme in SCHEMES.values() if scheme.is_web)
LOCAL = frozenset(scheme.name for scheme in SCHEMES.values() if scheme.is_local)


def scheme_of(url: str) -> Scheme:
    """The row of its scheme; that of ``file`` for a plain path.

    Raises:
        ValueError: A scheme that no store serves, or a mistyped one.
    """
    match = _SCHEME.match(url)
    if match is None:
        mistyped = _MISTYPED.match(url)
        if mistyped is not None:
            name = mistyped[1].lower()
            meant = ELSEWHERE.get(name, name).partition("://")[0]
            raise ValueError(f"a URL should begin with {meant}://, but one begins with {mistyped[0]!r}")
        return SCHEMES["file"]
    name = match[1].lower()
    if name not in SCHEMES:
        if name in ELSEWHERE:
            raise ValueError(f"unknown scheme {name}:// in {redact(url)!r}; write {ELSEWHERE[name]}")
        known = ", ".join(f"{scheme}://" for scheme in SCHEMES)
        raise ValueError(f"unknown scheme {name}:// in {redact(url)!r}; known are {known} and plain paths")
    return SCHEMES[name]


def origin_of(url: str) -> str:
    """The server or bucket that it names; empty for this machine."""
    return "" if scheme_of(url).is_local else urlsplit(url).netloc


def local_path(url: str) -> str:
    """The path that a ``file://`` URL or a plain path means."""
    match = _SCHEME.match(url)
    if match is None:
        return url
    # Not urlsplit: files have no query, and ``?`` is a glob.
    host, slash, path = url[match.end() :].partition("/")
    if host.startswith("~"):
        raise ValueError(
            f"a file:// URL has no home folder, but one begins with file://{host}; leave out file://, and "
            f"write {host}{slash}..."
        )
    if host not in ("", "localhost"):
        raise ValueError(
            f"a file:// URL should have no host, but got {host.rpartition('@')[2]!r}; write file:///path"
        )
    return unquote(slash + path)


def is_remote_pattern(url: str) -> bool:
    """Whether a server must be asked which shards ``url`` means: a prefix that ends in ``/``, or a glob."""
    if not scheme_of(url).is_listed:
        return False
    root, key = split_key(url)
    return root.endswith("/") and (key == "" or key.endswith("/") or has_special(key))


def split_key(url: str) -> tuple[str, str]:
    """``scheme://bucket/`` and the key behind it, as written: keys have no escapes."""
    scheme, _, rest = url.partition("://")
    bucket, slash, key = rest.partition("/")
    return f"{scheme}://{bucket}{slash}", key


def check_web_url(url: str) -> None:
    """Refuse a web URL without a server.

    Raises:
        ValueError: No host, or an invalid port.
    """
    if not is_server_url(url):
        raise ValueError(f"a URL should be http(s)://host[:port]/path, but got {redact(url)!r}")


def is_server_url(url: str) -> bool:
    """Whether ``url`` names a web server."""
    try:
        parts = urlsplit(url)
        # Reading the port raises, too.
        return parts.scheme.lower() in WEB and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def suffix_path(url: str) -> str:
    """The part of ``url`` with the file name and its suffixes: no query, no fragment."""
    match = _SCHEME.match(url)
    if match is None:
        return url
    if match[1].lower() in WEB:
        if _PLAIN.fullmatch(url) is None:
            return urlsplit(url).path
        _, slash, path = url[match.end() :].partition("/")
        return slash + path
    return url[match.end() :].partition("/")[2]  # keys and files have neither query nor fragment


def redact(url: str) -> str:
    """``url`` as it may be shown: without user info, query and fragment, which may contain secrets."""
    if "://" not in url or _PLAIN.fullmatch(url) is not None:
        return url
    match = _SCHEME.match(url)
    if match is None or match[1].lower() in LOCAL:
        return url
    try:
        parts = urlsplit(url)
    except ValueError:  # such as brackets without an address; an error message must not fail for it
        return f"{match[1]}://(not a valid URL)"
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
