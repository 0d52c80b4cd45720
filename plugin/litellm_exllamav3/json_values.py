"""Values of a request, which come from JSON and may be anything: checked by name, never quoted."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from exllamav3_adapters.errors import InvalidRequest


def json_kind(value: Any) -> str:
    """The type of a JSON value in JSON's own words."""
    kinds = ((bool, "a boolean"), (int, "an integer"), (float, "a number"), (str, "a string"))
    for cls, name in kinds:
        if isinstance(value, cls):
            return name
    if isinstance(value, Mapping):
        return "an object"
    return "a list" if isinstance(value, list | tuple) else "null" if value is None else "of an unknown type"


def whole_number(name: str, value: Any, *, low: int, high: int | None = None) -> int:
    """Raises `InvalidRequest` for anything but an integer of that range."""
    allowed = f"an integer, at least {low}" + (f" and at most {high}" if high is not None else "")
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidRequest(f"{name} must be {allowed}, not {json_kind(value)}.", name)
    if value < low or (high is not None and value > high):
        # An integer of JSON may have thousands of digits.
        what = f"it is {value}" if abs(value) < 2**63 else "it has more than 64 bits"
        raise InvalidRequest(f"{name} must be {allowed}; {what}.", name)
    return value


def boolean(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise InvalidRequest(f"{name} must be true or false, not {json_kind(value)}.", name)
    return value


def one_of(name: str, value: Any, allowed: Collection[str]) -> str:
    if not isinstance(value, str):
        raise InvalidRequest(f"{name} must be one of {', '.join(allowed)}, not {json_kind(value)}.", name)
    if value not in allowed:
        raise InvalidRequest(f"{name} must be one of {', '.join(allowed)}.", name)
    return value
