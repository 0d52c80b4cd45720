"""The tables, as the newest migration leaves them. Nothing here is SQLite's alone.

Times are seconds since the epoch; counts and values are in the log form of `credit.py`.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Float, Integer, LargeBinary, MetaData, String, Table

metadata = MetaData()

schema_version = Table(
    "schema_version",
    metadata,
    Column("version", Integer, primary_key=True, autoincrement=False),
    Column("applied_at", Float, nullable=False),
)

heads = Table(
    "heads",
    metadata,
    Column("model_key", String, primary_key=True),
    Column("digest", String, primary_key=True),
    Column("owner", String, nullable=False),
    Column("content", LargeBinary, nullable=False),
    Column("num_bytes", BigInteger, nullable=False),
    Column("num_tokens", BigInteger, nullable=False),
    Column("value", Float, nullable=False),
    Column("captured_at", Float, nullable=False),
    Column("written_at", Float, nullable=False),
)

credits = Table(  # noqa: A001 - the table's name; the builtin of that name is for people at a prompt
    "credits",
    metadata,
    Column("model_key", String, primary_key=True),
    Column("digest", String, primary_key=True),
    Column("owner", String, primary_key=True),
    Column("conversations", Float, nullable=False),
    Column("requests", Float, nullable=False),
    Column("seen_at", Float, nullable=False, index=True),
)

prefixes = Table(
    "prefixes",
    metadata,
    Column("model_key", String, primary_key=True),
    Column("cache_fingerprint", String, primary_key=True),
    Column("digest", String, primary_key=True),
    Column("token_ids", LargeBinary, nullable=False),
    Column("num_tokens", BigInteger, nullable=False),
    Column("credit", Float, nullable=False),
    Column("written_at", Float, nullable=False),
)
