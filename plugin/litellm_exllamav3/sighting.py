"""What the pre-call hook knows of a request, on its way to the provider.

A context variable: the hook is awaited in the request's own task, and LiteLLM runs the provider in that task or in one
made from it, on every route. A client has no way to write it, as it has with all that travels in the request, and no
translation between routes loses it.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextvars import ContextVar
from dataclasses import dataclass

from litellm_exllamav3.capture import Sighting


@dataclass(frozen=True, slots=True)
class _Note:
    sightings: tuple[Sighting, ...] = ()
    not_retained: frozenset[str] = frozenset()


_NO_NOTE = _Note()
_NOTE: ContextVar[_Note] = ContextVar("litellm_exllamav3_note", default=_NO_NOTE)


def leave_note(sightings: Iterable[Sighting] = (), *, not_retained: Iterable[str] = ()) -> None:
    """In place of any that is there. `not_retained`: the models' keys for which nothing of the request may be kept."""
    _NOTE.set(_Note(tuple(sightings), frozenset(not_retained)))


def find_sighting(model_key: str) -> Sighting | None:
    """What the hook saw of this request's head, as a head of that model."""
    return next((sighting for sighting in _NOTE.get().sightings if sighting.model_key == model_key), None)


def hook_forbids_keeping(model_key: str) -> bool:
    """Whether the hook found that nothing of this request may be kept. False also if it never saw the request."""
    return model_key in _NOTE.get().not_retained
