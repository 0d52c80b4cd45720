"""Where a client's name for a model may lead, as the proxy's router has it at this moment."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from litellm_exllamav3.gateway_checks import PROVIDER

_PREFIX: Final = f"{PROVIDER}/"


@dataclass(frozen=True, slots=True)
class Target:
    """Where a request's alias may lead."""

    keys: tuple[str, ...] = ()
    """Of our models."""
    is_ours_alone: bool = False
    has_fallbacks: bool = False
    """Another alias may answer where this one cannot."""


def find_target(data: Mapping[str, Any], user: Any) -> Target:
    """Asked of the router each time, which takes a microsecond and is right after a reload.

    `user` is LiteLLM's `UserAPIKeyAuth`, or None.
    """
    alias = data.get("model")
    router = getattr(sys.modules.get("litellm.proxy.proxy_server"), "llm_router", None)
    if not isinstance(alias, str) or router is None:
        return Target()
    deployments = router.get_model_list(model_name=alias, team_id=getattr(user, "team_id", None)) or ()
    keys = [model_key(deployment["litellm_params"]) for deployment in deployments]
    ours = tuple(dict.fromkeys(key for key in keys if key is not None))
    return Target(
        keys=ours,
        is_ours_alone=bool(ours) and None not in keys,
        has_fallbacks=bool(router.fallbacks or data.get("fallbacks") or getattr(user, "router_settings", None)),
    )


def model_key(params: Mapping[str, Any]) -> str | None:
    """The key of our model that a deployment, or a call to one, leads to. None: it leads to another provider."""
    model = params.get("model")
    if not isinstance(model, str):
        return None
    if model.startswith(_PREFIX):
        return model.removeprefix(_PREFIX)
    return model if params.get("custom_llm_provider") == PROVIDER else None
