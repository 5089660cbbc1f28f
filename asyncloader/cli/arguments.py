"""Arguments that several commands share: shards, their format, storage options."""

from __future__ import annotations

import argparse
from typing import Any

import msgspec

from ..pipeline import folders as opening
from ..pipeline.dataset import Dataset
from ..pipeline.shards import Shards
from ..shards.names import NamedShards

_BOOLEANS = {"true": True, "false": False}


def add_shards(parser: argparse.ArgumentParser) -> None:
    """The URLs, their format, and the options of their stores."""
    parser.add_argument(
        "urls",
        nargs="+",
        metavar="URL",
        help="URL or path of shards: http(s)://, s3://, gs://, az://, hf://datasets/, file:// or a path. "
        "Braces such as {000..127} are expanded; except on web servers also globs, and folders or prefixes "
        "that end in /",
    )
    add_format(parser)
    add_stores(parser)


def add_format(parser: argparse.ArgumentParser) -> None:
    """The format of shards whose names do not show it."""
    parser.add_argument(
        "--format",
        help="format of the shards, if their suffix does not show it: tar, jsonl, text, csv, tsv, parquet, "
        "arrow, npy, npz or tfrecord; or mds or litdata, with the folder of the index.json as the only URL",
    )
    parser.add_argument(
        "--delimiter",
        type=_delimiter,
        metavar="CHARACTER",
        help="separator of fields in CSV, such as ';' or tab (default: a comma; for TSV a tab)",
    )
    parser.add_argument(
        "--block-size", type=int, metavar="N", help="tokens per sample, for LitData's chunks of tokens"
    )


def _delimiter(given: str) -> str:
    # A shell makes it hard to write the character itself.
    return "\t" if given in ("tab", "\\t") else given


def add_stores(parser: argparse.ArgumentParser) -> None:
    """Access to stores that the environment does not configure."""
    stores = parser.add_argument_group(
        "stores",
        "Credentials come from the environment and the usual files. All users of the machine can see a "
        "command line: pass secrets in the environment or with --options.",
    )
    stores.add_argument("--endpoint", metavar="URL", help="URL of the object store, such as http://host:9000")
    stores.add_argument(
        "--header",
        action="append",
        default=[],
        metavar="'NAME: VALUE'",
        help="HTTP header for web servers; repeatable",
    )
    stores.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="storage option, such as region=eu-west-1 or anonymous=true; repeatable",
    )
    stores.add_argument(
        "--options",
        metavar="FILE",
        help="JSON file with more storage options",
    )


def add_concurrency(parser: argparse.ArgumentParser) -> None:
    """For commands that read every shard once."""
    parser.add_argument(
        "-j",
        "--concurrency",
        type=int,
        metavar="N",
        help="number of shards to read at a time (default: one per processor, up to 8)",
    )


def add_columns(parser: argparse.ArgumentParser) -> None:
    """Which fields to read."""
    parser.add_argument(
        "--columns",
        metavar="NAME,...",
        help="read only these fields, in this order; other columns of Parquet are not read",
    )


def columns_of(asked: argparse.Namespace) -> list[str] | None:
    """The fields to read; None for all.

    Raises:
        ValueError: The option is not a list of names.
    """
    if asked.columns is None:
        return None
    names = [name.strip() for name in asked.columns.split(",")]
    if not all(names):
        raise ValueError("--columns should be names separated by commas, such as id,tokens")
    return names


def storage_options(asked: argparse.Namespace) -> dict[str, Any]:
    """The storage options of the command.

    Raises:
        ValueError: One has a wrong form. No message shows a value.
        OSError: The file of options cannot be read.
    """
    options = {} if asked.options is None else _read(asked.options)
    for given in asked.option:
        name, equals, value = given.partition("=")
        if not (name and equals):
            raise ValueError("--option should be NAME=VALUE, such as region=eu-west-1, but has no '='")
        options[name] = _BOOLEANS.get(value.lower(), value)
    if asked.endpoint is not None:
        options["endpoint"] = asked.endpoint
    if asked.header:
        headers = options.get("headers", {})
        if not isinstance(headers, dict):
            raise ValueError("--options should have headers as an object of names and values")
        options["headers"] = {**headers, **dict(map(_header, asked.header))}
    return options


def _header(given: str) -> tuple[str, str]:
    name, colon, value = given.partition(":")
    if not (name and colon):
        raise ValueError("--header should be 'NAME: VALUE', but has no ':'")
    return name.strip(), value.strip()


def _read(path: str) -> dict[str, Any]:
    with open(path, "rb") as file:
        try:
            return msgspec.json.decode(file.read(), type=dict[str, Any])
        except (msgspec.MsgspecError, UnicodeDecodeError):  # whose messages may show a secret
            raise ValueError(f"--options should name a JSON file with one object; {path!r} is none") from None


def open_dataset(asked: argparse.Namespace, **options: Any) -> Dataset:
    """The dataset of the shards and fields that a command names.

    Args:
        asked: With the arguments of ``add_shards`` and ``add_columns``.
        options: More options of the dataset.

    Raises:
        ValueError: A wrong option, or columns that are not a list of names.
        OSError: A listing or an index cannot be read.
    """
    return opening.open_dataset(
        asked.urls, asked.format, columns=columns_of(asked), **_given(asked), **options
    )


def open_shards(asked: argparse.Namespace, **options: Any) -> Shards:
    """The shards that a command names, with all fields."""
    return opening.open_shards(asked.urls, asked.format, **_given(asked), **options)


def named_shards(asked: argparse.Namespace) -> NamedShards:
    """The shards, as the arguments of ``add_shards`` name them."""
    return NamedShards(asked.urls, asked.format, asked.delimiter, storage_options(asked))


def _given(asked: argparse.Namespace) -> dict[str, Any]:
    return {
        "block_size": asked.block_size,
        "delimiter": asked.delimiter,
        "storage_options": storage_options(asked),
    }
