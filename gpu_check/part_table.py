"""The parts in the order in which they run: what tells most about the engine first, since the time may end."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from importlib import import_module

from gpu_check.check import Check, Figures


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """One thing to check, in a process of its own. `module:function`, imported there."""

    name: str
    function: str
    seconds: float
    """After which it is ended, on a card."""
    needs: tuple[str, ...] = ()
    """Parts that must have been done."""
    needs_card: bool = False

    def run(self, check: Check) -> Figures | Awaitable[Figures]:
        module, _, name = self.function.partition(":")
        function: Callable[[Check], Figures | Awaitable[Figures]] = getattr(import_module(module), name)
        return function(check)


def _part(name: str, function: str, seconds: float, *needs: str, card: bool = False) -> Part:
    return Part(name=name, function=f"gpu_check.parts.{function}", seconds=seconds, needs=needs, needs_card=card)


PARTS = (
    _part("models", "models:write_models", 60),
    _part("extension", "extension:build_extension", 480, card=True),
    _part("llama_conversion", "models:convert_llama", 120, "models", "extension", card=True),
    _part("exactness", "exactness:check_exactness", 90, "llama_conversion"),
    _part("conformance", "conformance:check_conformance", 180, "llama_conversion"),
    _part("aging", "aging:check_aging", 60, "llama_conversion"),
    _part("hybrid_conversion", "models:convert_hybrid", 120, "models", "extension", card=True),
    _part("frontiers", "frontiers:check_frontiers", 60, "hybrid_conversion"),
    _part("checkpoints", "checkpoints:check_checkpoints", 60, "hybrid_conversion"),
    _part("memory", "memory:check_memory_fault", 60, "llama_conversion"),
    _part("answers", "answers:check_answers", 60, "llama_conversion"),
    _part("serving", "serving:measure_serving", 120, "llama_conversion"),
)
