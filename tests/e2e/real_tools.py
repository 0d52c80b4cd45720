"""Tools that a small model can call: every argument is bounded, so that it cannot ramble in one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import jsonschema

WEATHER: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "enum": ["Oslo", "Lima", "Cairo"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 7},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}
CLOTHES: dict[str, Any] = {
    "type": "object",
    "properties": {"for_rain": {"type": "boolean"}, "note": {"type": "string", "maxLength": 20}},
    "required": ["for_rain"],
    "additionalProperties": False,
}
SCHEMAS = {"get_weather": WEATHER, "choose_clothes": CLOTHES}
DESCRIPTIONS = {"get_weather": "Weather of a city.", "choose_clothes": "What to wear."}
QUESTION = "What is the weather in Lima this week, and what do I wear?"

OPENAI_TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {"name": name, "description": DESCRIPTIONS[name], "parameters": schema},
    }
    for name, schema in SCHEMAS.items()
]
ANTHROPIC_TOOLS: list[dict[str, Any]] = [
    {"name": name, "description": DESCRIPTIONS[name], "input_schema": schema} for name, schema in SCHEMAS.items()
]
RESPONSES_TOOLS: list[dict[str, Any]] = [
    {"type": "function", "name": name, "description": DESCRIPTIONS[name], "parameters": schema}
    for name, schema in SCHEMAS.items()
]


def is_valid_call(name: str, arguments: str | Mapping[str, Any]) -> bool:
    """Whether the arguments are a JSON value that the tool's schema allows."""
    value = json.loads(arguments) if isinstance(arguments, str) else arguments
    return bool(jsonschema.Draft202012Validator(SCHEMAS[name]).is_valid(value))
