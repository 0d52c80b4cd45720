"""What a request sets of its template's variables: a template may write some into the head, such as its effort."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from exllamav3_adapters.errors import InvalidRequest
from litellm_exllamav3.answer_params import template_variables
from litellm_exllamav3.lost_fields import reasoning_fields


def head_variables(body: Mapping[str, Any], call_type: str) -> Mapping[str, Any]:
    """From a route's raw body, as the provider will find them. Empty where the provider will refuse them."""
    extra = body.get("extra_body")
    flat = {**extra, **body} if isinstance(extra, Mapping) else body
    clients_own = flat.get("chat_template_kwargs")
    if not isinstance(clients_own, Mapping):
        clients_own = {}
    asked = reasoning_fields(flat, call_type)
    try:
        variables = template_variables(asked, clients_own) if asked else {}
    except InvalidRequest:
        return {}
    return {**variables, **clients_own}
