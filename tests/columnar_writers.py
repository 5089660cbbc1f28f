"""Program: write a table as polars and DuckDB do, in each codec. Arguments: a folder, and its rows."""

import sys
from pathlib import Path

import duckdb
import polars


def main(folder: Path, rows: int) -> None:
    frame = polars.read_parquet(folder / "source")
    for codec in ("uncompressed", "snappy", "gzip", "brotli", "zstd", "lz4"):
        for groups in (1, 50):
            frame.write_parquet(
                folder / f"polars-{codec}-{groups}", compression=codec, row_group_size=rows // groups
            )
    frame.write_ipc(folder / "polars-file")
    frame.write_ipc_stream(folder / "polars-stream")
    # The dictionary lies behind the batch.
    coded = frame.with_columns(polars.col("text").cast(polars.Categorical))
    coded.write_ipc(folder / "polars-categories", compat_level=polars.CompatLevel.oldest())
    with duckdb.connect() as database:
        for codec in ("uncompressed", "snappy", "gzip", "brotli", "zstd", "lz4_raw"):
            for version in ("V1", "V2"):
                target = folder / f"duckdb-{codec}-{version}"
                options = f"FORMAT parquet, COMPRESSION {codec}, PARQUET_VERSION {version}"
                database.execute(f"COPY (FROM read_parquet('{folder}/source')) TO '{target}' ({options})")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
