"""Reads and writes of the tables, each within the caller's transaction. SQLite and PostgreSQL alike."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from sqlalchemy import ColumnElement, Connection, Table, delete, func, select, update
from sqlalchemy.dialects import postgresql, sqlite

from litellm_exllamav3.credit import CreditRow
from litellm_exllamav3.store.budget import Entry, ModelBudgets, excess
from litellm_exllamav3.store.pending import Pending
from litellm_exllamav3.store.records import StoredChain, StoredHead
from litellm_exllamav3.store.schema import credits as credits_table
from litellm_exllamav3.store.schema import heads as heads_table
from litellm_exllamav3.store.schema import prefixes as chains_table

_MAX_CREDITS_PER_MODEL = 8192
"""Twice the heads that a table in memory holds."""


def write_pending(connection: Connection, pending: Pending) -> dict[str, list[str]]:
    """Writes it all. Returns, by model, sighted heads that are no longer there: another process removed them."""
    _upsert(connection, heads_table, [_head_row(head) for head in pending.heads.values()], keep=("captured_at",))
    _upsert(connection, credits_table, [_credit_row(key[0], row) for key, row in pending.credits.items()])
    # A digest names its tokens, so a chain that is written again is not copied again.
    chains = [asdict(chain) for chain in pending.chains.values()]
    _upsert(connection, chains_table, chains, keep=("token_ids", "num_tokens"))
    missing: dict[str, list[str]] = {}
    for (model_key, digest), (value, at) in pending.sightings.items():
        change = update(heads_table).where(*_is_head(model_key, digest)).values(value=value, written_at=at)
        if connection.execute(change).rowcount == 0:
            missing.setdefault(model_key, []).append(digest)
    return missing


def apply_budget(
    connection: Connection, model_key: str, budgets: ModelBudgets, now: float, newcomers: Iterable[str] = ()
) -> list[str]:
    """Removes what exceeds the budgets, and counts that are too old or too many. Returns the digests of heads."""
    for entry in excess(_chain_entries(connection, model_key), budgets.chains, now):
        connection.execute(delete(chains_table).where(*_is_chain(model_key, entry.owner, entry.digest)))
    gone = [
        entry.digest for entry in excess(read_entries(connection, model_key), budgets.heads, now, frozenset(newcomers))
    ]
    for digest in gone:
        connection.execute(delete(heads_table).where(*_is_head(model_key, digest)))
    c = credits_table.c
    rows = connection.execute(
        select(c.seen_at).where(c.model_key == model_key).order_by(c.seen_at.desc()).offset(_MAX_CREDITS_PER_MODEL)
    )
    first_surplus = rows.scalars().first()
    oldest = now - budgets.heads.max_age_seconds
    cutoff = oldest if first_surplus is None else max(oldest, first_surplus)
    connection.execute(delete(credits_table).where(c.model_key == model_key, c.seen_at <= cutoff))
    return gone


def delete_head(connection: Connection, model_key: str, digest: str) -> StoredHead | None:
    """Removes the head and what is counted of it. Returns it, or None if there was none."""
    row = connection.execute(select(heads_table).where(*_is_head(model_key, digest))).one_or_none()
    connection.execute(delete(heads_table).where(*_is_head(model_key, digest)))
    c = credits_table.c
    connection.execute(delete(credits_table).where(c.model_key == model_key, c.digest == digest))
    return None if row is None else _stored_head(row._mapping)


def delete_chains(connection: Connection, model_key: str, doomed: Callable[[StoredChain], bool]) -> list[StoredChain]:
    """Removes those chains of the model, and returns them."""
    gone = [chain for chain in read_chains(connection, model_key) if doomed(chain)]
    for chain in gone:
        connection.execute(delete(chains_table).where(*_is_chain(*chain.key)))
    return gone


def read_chains(connection: Connection, model_key: str) -> list[StoredChain]:
    """Of all fingerprints."""
    rows = connection.execute(select(chains_table).where(chains_table.c.model_key == model_key))
    return [StoredChain(**row._mapping) for row in rows]


def count_chains(connection: Connection) -> dict[str, int]:
    """By model."""
    key = chains_table.c.model_key
    return {row[0]: row[1] for row in connection.execute(select(key, func.count()).group_by(key))}


def read_heads(connection: Connection, model_key: str) -> list[StoredHead]:
    return [
        _stored_head(row._mapping)
        for row in connection.execute(select(heads_table).where(heads_table.c.model_key == model_key))
    ]


def read_entries(connection: Connection, model_key: str) -> list[Entry]:
    c = heads_table.c
    columns = select(c.digest, c.owner, c.num_bytes, c.value, c.written_at).where(c.model_key == model_key)
    return [Entry(**row._mapping) for row in connection.execute(columns)]


def read_credits(connection: Connection, model_key: str) -> list[CreditRow]:
    c = credits_table.c
    columns = select(c.digest, c.owner, c.conversations, c.requests, c.seen_at).where(c.model_key == model_key)
    return [CreditRow(**row._mapping) for row in connection.execute(columns)]


def read_model_keys(connection: Connection) -> Sequence[str]:
    keys = select(heads_table.c.model_key).union(select(chains_table.c.model_key))
    return connection.execute(keys).scalars().all()


def _chain_entries(connection: Connection, model_key: str) -> list[Entry]:
    """As `StoredChain.entry`, without reading the tokens."""
    c = chains_table.c
    columns = select(
        c.digest,
        c.cache_fingerprint.label("owner"),
        func.length(c.token_ids).label("num_bytes"),
        c.written_at.label("value"),
        c.written_at,
    )
    return [Entry(**row._mapping) for row in connection.execute(columns.where(c.model_key == model_key))]


def _is_chain(model_key: str, cache_fingerprint: str, digest: str) -> tuple[ColumnElement[bool], ...]:
    c = chains_table.c
    return c.model_key == model_key, c.cache_fingerprint == cache_fingerprint, c.digest == digest


def _is_head(model_key: str, digest: str) -> tuple[Any, Any]:
    return heads_table.c.model_key == model_key, heads_table.c.digest == digest


def _upsert(connection: Connection, table: Table, rows: list[dict[str, Any]], keep: Sequence[str] = ()) -> None:
    """Inserts rows, or replaces those of the same primary key, except for the columns to keep."""
    if not rows:
        return
    dialect = postgresql if connection.dialect.name == "postgresql" else sqlite
    statement = dialect.insert(table)
    changed = {
        column.name: statement.excluded[column.name]
        for column in table.columns
        if not column.primary_key and column.name not in keep
    }
    connection.execute(statement.on_conflict_do_update(index_elements=list(table.primary_key), set_=changed), rows)


def _head_row(head: StoredHead) -> dict[str, Any]:
    return {
        "model_key": head.model_key,
        "digest": head.digest,
        "owner": head.owner,
        "content": head.content,
        "num_bytes": len(head.content),
        "num_tokens": head.num_tokens,
        "value": head.value,
        "captured_at": head.captured_at,
        "written_at": head.written_at,
    }


def _stored_head(row: Mapping[Any, Any]) -> StoredHead:
    return StoredHead(**{key: value for key, value in row.items() if key != "num_bytes"})


def _credit_row(model_key: str, row: CreditRow) -> dict[str, Any]:
    return {
        "model_key": model_key,
        "digest": row.digest,
        "owner": row.owner,
        "conversations": row.conversations,
        "requests": row.requests,
        "seen_at": row.seen_at,
    }
