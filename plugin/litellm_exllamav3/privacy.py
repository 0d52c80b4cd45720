"""Whether anything of a request may outlive it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

METADATA_KEY = "exllamav3_capture"
"""In the metadata of a LiteLLM key or team. Absent: captured."""

_ON = ("true", "1", "yes", "on")
_OFF = ("false", "0", "no", "off", "none", "")


def retains(
    *,
    capture_enabled: bool,
    no_log: object,
    message_logging_off: object,
    key_metadata: Mapping[str, Any] | None,
    team_metadata: Mapping[str, Any] | None,
) -> bool:
    """False where the operator, the key, the team or the request itself has asked that nothing be kept.

    `no_log` and `message_logging_off` come as LiteLLM found them, from YAML, a header or a body.
    """
    if not capture_enabled or _asked_for(no_log) or _asked_for(message_logging_off):
        return False
    return _allows(key_metadata) and _allows(team_metadata)


def _asked_for(flag: object) -> bool:
    return str(flag).strip().lower() not in _OFF


def _allows(metadata: Mapping[str, Any] | None) -> bool:
    """A wish that cannot be read is taken for a no."""
    if not isinstance(metadata, Mapping) or metadata.get(METADATA_KEY) is None:
        return True
    return str(metadata[METADATA_KEY]).strip().lower() in _ON
