"""The table of request fields in Markdown, for the README."""

from __future__ import annotations

from collections.abc import Iterator

from litellm_exllamav3.request_fields import ROUTES, Route


def request_fields_reference() -> str:
    """Markdown: a table for every route."""
    return "\n\n".join("\n".join(_table(route)) for route in ROUTES.values()) + "\n"


def _table(route: Route) -> Iterator[str]:
    yield f"#### `{route.path}`"
    yield ""
    yield "| field | treatment | |"
    yield "|---|---|---|"
    for field in route.fields:
        yield f"| `{field.name}` | {field.treatment} | {field.note} |"
