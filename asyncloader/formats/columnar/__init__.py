"""Formats of columns, through pyarrow: Parquet, of which the wanted columns are read, and Arrow IPC.

``selection`` says what the user wants, ``parquet`` and ``arrow`` plan and decode, ``picking`` cuts what they
decode into blocks, ``convert`` makes columns of Arrow's arrays. pyarrow is imported where it is first used.
"""
