"""What the values of a parameter may be, and how they are read."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from exllamav3_adapters.errors import InvalidRequest
from litellm_exllamav3.json_values import boolean, json_kind

INT64: Final = 2**63
_PAST_ANY_TOKEN_ID: Final = 2**31
_DIGITS: Final = re.compile(r"[0-9]{1,10}")


class Kind(Protocol):
    """What the values of a parameter may be. Its text says which."""

    def read(self, name: str, value: Any) -> Any:
        """The value in the engine's type. Raises `InvalidRequest`, which names the parameter and what is allowed,
        never the value's text."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Number:
    """An interval. `integer` refuses fractions; a whole number is welcome wherever a fraction is."""

    low: float = -math.inf
    high: float = math.inf
    integer: bool = False
    low_open: bool = False

    def __str__(self) -> str:
        kind = "an integer" if self.integer else "a number"
        if self.low <= -INT64 and self.high >= INT64 - 1:
            return f"{kind} of 64 bits" if self.integer else kind
        low = f"greater than {self.low:g}" if self.low_open else f"at least {self.low:g}"
        if self.high == math.inf:
            return f"{kind}, {low}"
        return f"{kind}, {low} and at most {self.high:g}"

    def read(self, name: str, value: Any) -> float:
        whole = isinstance(value, int) and not isinstance(value, bool)
        if not whole and (self.integer or not isinstance(value, float)):
            raise InvalidRequest(f"{name} must be {self}, not {json_kind(value)}.", name)
        if not math.isfinite(value) if isinstance(value, float) else abs(value) > INT64:
            raise InvalidRequest(f"{name} must be {self}; it is not a finite number of 64 bits.", name)
        if not self._holds(value):
            raise InvalidRequest(f"{name} must be {self}; it is {value}.", name)
        return int(value) if self.integer else float(value)

    def _holds(self, value: float) -> bool:
        above = value > self.low if self.low_open else value >= self.low
        return above and value <= self.high


@dataclass(frozen=True, slots=True)
class Flag:
    def __str__(self) -> str:
        return "true or false"

    def read(self, name: str, value: Any) -> bool:
        return boolean(name, value)


@dataclass(frozen=True, kw_only=True, slots=True)
class Texts:
    """One text or a list of them. `json_text`: also the JSON text of a list, as some clients send it."""

    most: int
    json_text: bool = False

    def __str__(self) -> str:
        return f"a string or a list of at most {self.most} strings"

    def read(self, name: str, value: Any) -> tuple[str, ...]:
        values = self._values(name, value)
        if not isinstance(values, list | tuple):
            raise InvalidRequest(f"{name} must be a string or a list of strings, not {json_kind(value)}.", name)
        if len(values) > self.most:
            raise InvalidRequest(f"{name} may hold at most {self.most} strings; it holds {len(values)}.", name)
        for item in values:
            if not isinstance(item, str):
                raise InvalidRequest(f"{name} must hold strings only; one of them is {json_kind(item)}.", name)
            if not item:
                raise InvalidRequest(f"{name} must not hold an empty string.", name)
        return tuple(values)

    def _values(self, name: str, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        if not self.json_text or len(value) == 1 or not value.startswith(("[", '"')):
            return [value]
        try:
            # TabbyAPI takes the list with its brackets and without.
            return json.loads(value if value.startswith("[") else f"[{value}]")
        except (ValueError, RecursionError):
            raise InvalidRequest(f"{name} begins as the JSON text of a list, and is none.", name) from None


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenIds:
    """A list of token ids, or their text with commas. The engine knows which ids there are."""

    most: int

    def __str__(self) -> str:
        return f"a list of at most {self.most} token ids"

    def read(self, name: str, value: Any) -> tuple[int, ...]:
        values = [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value
        if not isinstance(values, list | tuple):
            raise InvalidRequest(f"{name} must be a list of token ids, not {json_kind(value)}.", name)
        if len(values) > self.most:
            raise InvalidRequest(f"{name} may hold at most {self.most} token ids; it holds {len(values)}.", name)
        return tuple(_token_id(name, item, text_too=isinstance(value, str)) for item in values)


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenBias:
    """Token id, as a text where it comes from JSON -> what is added to its logit."""

    most: int
    bias: Number

    def __str__(self) -> str:
        return f"an object of at most {self.most} token ids with their biases, each {self.bias}"

    def read(self, name: str, value: Any) -> dict[int, float]:
        if not isinstance(value, Mapping):
            raise InvalidRequest(f"{name} must be an object of token ids, not {json_kind(value)}.", name)
        if len(value) > self.most:
            raise InvalidRequest(f"{name} may hold at most {self.most} token ids; it holds {len(value)}.", name)
        biases: dict[int, float] = {}
        for key, item in value.items():
            token = _token_id(name, key, text_too=True)
            try:
                biases[token] = self.bias.read(f"{name}: the bias of token {token}", item)
            except InvalidRequest as error:
                raise InvalidRequest(error.message, name) from None
        return biases


def _token_id(name: str, value: Any, *, text_too: bool) -> int:
    if text_too and isinstance(value, str) and _DIGITS.fullmatch(value):
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidRequest(f"{name} must hold token ids; one of them is {json_kind(value)}.", name)
    if not 0 <= value < _PAST_ANY_TOKEN_ID:
        # An integer of JSON may have thousands of digits.
        raise InvalidRequest(f"{name} must hold token ids, integers from 0 to {_PAST_ANY_TOKEN_ID - 1}.", name)
    return value
