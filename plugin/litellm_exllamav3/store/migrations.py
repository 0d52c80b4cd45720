"""From any earlier schema to the present one, one step a version.

A step that was released is never changed; what it would say today is in `schema.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sqlalchemy import Connection, Engine, func, insert, inspect, select, text

from litellm_exllamav3.store.errors import StoreUnavailable
from litellm_exllamav3.store.schema import schema_version

Migration = Callable[[Connection], None]


def _binary(connection: Connection) -> str:
    return "BYTEA" if connection.dialect.name == "postgresql" else "BLOB"


def _heads_and_credits(connection: Connection) -> None:
    connection.execute(
        text(
            f"""CREATE TABLE heads (
                model_key VARCHAR NOT NULL, digest VARCHAR NOT NULL, owner VARCHAR NOT NULL,
                content {_binary(connection)} NOT NULL, num_bytes BIGINT NOT NULL, num_tokens BIGINT NOT NULL,
                value FLOAT NOT NULL, captured_at FLOAT NOT NULL,
                written_at FLOAT NOT NULL,
                PRIMARY KEY (model_key, digest))"""
        )
    )
    connection.execute(
        text(
            """CREATE TABLE credits (
                model_key VARCHAR NOT NULL, digest VARCHAR NOT NULL, owner VARCHAR NOT NULL,
                conversations FLOAT NOT NULL, requests FLOAT NOT NULL,
                seen_at FLOAT NOT NULL,
                PRIMARY KEY (model_key, digest, owner))"""
        )
    )
    connection.execute(text("CREATE INDEX ix_credits_seen_at ON credits (seen_at)"))


def _prefixes(connection: Connection) -> None:
    connection.execute(
        text(
            f"""CREATE TABLE prefixes (
                model_key VARCHAR NOT NULL, cache_fingerprint VARCHAR NOT NULL, digest VARCHAR NOT NULL,
                token_ids {_binary(connection)} NOT NULL, num_tokens BIGINT NOT NULL,
                credit FLOAT NOT NULL, written_at FLOAT NOT NULL,
                PRIMARY KEY (model_key, cache_fingerprint, digest))"""
        )
    )


MIGRATIONS: tuple[Migration, ...] = (_heads_and_credits, _prefixes)
"""The step at index `n` leads from version `n` to `n + 1`."""


def migrate(engine: Engine, now: float, migrations: Sequence[Migration] = MIGRATIONS) -> int:
    """Brings the schema up to date, all in one transaction. Returns the version it had.

    Raises StoreUnavailable where a later release wrote the store; it is then left as it is.
    """
    with engine.begin() as connection:
        known = inspect(connection).has_table(schema_version.name)
        if not known:
            schema_version.create(connection)
        found = connection.execute(select(func.coalesce(func.max(schema_version.c.version), 0))).scalar_one()
        if found > len(migrations):
            raise StoreUnavailable(
                f"the store has schema version {found}, and this release knows {len(migrations)}: "
                "install the release that wrote it, or move the file away"
            )
        for version, step in enumerate(migrations[found:], start=found + 1):
            step(connection)
            connection.execute(insert(schema_version).values(version=version, applied_at=now))
    return int(found)
