"""Acts on `request_fields.py` before LiteLLM translates a body: what it would drop is refused, or told in the log."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Any, Final

from exllamav3_adapters.errors import InvalidRequest
from litellm_exllamav3.request_fields import ROUTES, Field, Treatment

logger = logging.getLogger("litellm_exllamav3")

_TRANSLATED_ROUTES: Final = ("aresponses", "anthropic_messages")
"""On the others the provider sees every field, and refuses by itself."""
_KEPT_IN_A_DATABASE: Final = "previous_response_id"


class FieldCheck:
    """Remembers what it has warned of, and says each once in the life of the process."""

    def __init__(self) -> None:
        self._warned: set[tuple[str, str]] = set()

    def check(self, body: Mapping[str, Any], call_type: str, *, has_database: bool = False) -> None:
        """Raises `InvalidRequest` for a field that cannot be served. `has_database`: LiteLLM keeps responses."""
        route = ROUTES.get(call_type)
        if route is None:
            return
        for field in route.fields:
            if field.treatment not in (Treatment.REFUSED, Treatment.WARNED) or not field.asks(body.get(field.name)):
                continue
            if field.treatment is Treatment.WARNED:
                self._warn(route.path, field)
            elif call_type in _TRANSLATED_ROUTES and not (has_database and field.name == _KEPT_IN_A_DATABASE):
                raise InvalidRequest(_refusal(field), field.name)

    def _warn(self, path: str, field: Field) -> None:
        if (path, field.name) in self._warned:
            return
        self._warned.add((path, field.name))
        logger.warning("%s: exllamav3 models ignore `%s`: %s (said once)", path, field.name, field.note)


def _refusal(field: Field) -> str:
    values = " or ".join(json.dumps(value) for value in field.asks_for_nothing)
    what = f"{field.name} (other than {values})" if values else field.name
    why = f": {field.note}" if field.note else ""
    return f"{what} is not supported by exllamav3 models{why}; remove it."
