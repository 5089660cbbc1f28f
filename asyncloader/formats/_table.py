"""The table of formats: a row for each."""

from __future__ import annotations

from functools import partial
from types import MappingProxyType

from ._format import Format
from ._tar_header import ZERO_BLOCK
from .arrays.npy import plan_npy
from .arrays.npz import plan_npz
from .columnar.arrow import plan_arrow
from .columnar.parquet import plan_parquet
from .csv_records import CsvDecoder
from .json_lines import JsonlDecoder
from .lines import TextDecoder
from .litdata import open_litdata_decoder, plan_litdata
from .mds.rows import COMPRESSIONS, open_mds_decoder, open_packed_mds, plan_mds
from .tar import TarDecoder

__all__ = ["formats"]

formats = MappingProxyType(
    {
        "tar": Format(
            TarDecoder,
            (".tar",),
            {".tgz": "gzip", ".tzst": "zstd", ".txz": "xz", ".tbz2": "bzip2"},
            # A sample has all its members when one of another begins, or the end.
            close=ZERO_BLOCK,
        ),
        "jsonl": Format(
            JsonlDecoder,
            (".jsonl", ".ndjson"),
            columns=partial(JsonlDecoder, columns=True),
            passes_over=True,
            may_be_empty=True,
        ),
        "text": Format(TextDecoder, (".txt", ".text"), passes_over=True, may_be_empty=True),
        # Only from its beginning, where the names are.
        "csv": Format(CsvDecoder, (".csv",), delimits=True),
        "tsv": Format(partial(CsvDecoder, usual="\t"), (".tsv",), delimits=True),
        "parquet": Format(
            None, (".parquet", ".pq"), plan=plan_parquet, selects=True, by_arrow=True, reopens=True
        ),
        "arrow": Format(None, (".arrow", ".feather", ".ipc"), plan=plan_arrow, selects=True, by_arrow=True),
        # Before "mds", which their names have too.
        **{
            f"mds.{family}": Format(
                partial(open_packed_mds, family),
                (f".mds.{family}",),
                selects=True,
                passes_over=True,
                unpacks=True,
            )
            for family in COMPRESSIONS
        },
        "mds": Format(
            open_mds_decoder, (".mds",), plan=plan_mds, selects=True, passes_over=True, reopens=True
        ),
        "npy": Format(None, (".npy",), plan=plan_npy, selects=True, reopens=True),
        "npz": Format(None, (".npz",), plan=plan_npz, selects=True, reopens=True),
        "litdata": Format(
            open_litdata_decoder,
            (),
            plan=plan_litdata,
            selects=True,
            passes_over=True,
            by_index=True,
            unpacks=True,
        ),
    }
)
