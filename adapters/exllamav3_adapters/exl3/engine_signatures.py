"""Whether the installed exllamav3 still has the functions that ours stand in for or call."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from exllamav3_adapters.errors import LoadFailed

Signatures: TypeAlias = Mapping[Callable[..., Any], list[str]]
"""Function -> the names of its parameters."""


def changed_functions(expected: Signatures) -> list[str]:
    """Names of those whose parameters are others."""
    return [
        function.__qualname__
        for function, names in expected.items()
        if list(inspect.signature(function).parameters) != names
    ]


def misfit(option: str, what: str) -> LoadFailed:
    return LoadFailed(
        f"{option} does not fit the installed exllamav3 ({what}); install exllamav3 1.6.5 or remove the option"
    )
