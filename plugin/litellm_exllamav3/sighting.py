"""The way of a request's sighting from the pre-call hook to the provider.

A context variable: the hook is awaited in the request's own task, and LiteLLM runs the provider in that task or in one
made from it, on every route. A client has no way to write it, as it has with all that travels in the request.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextvars import ContextVar

from litellm_exllamav3.capture import Sighting

_SIGHTINGS: ContextVar[tuple[Sighting, ...]] = ContextVar("litellm_exllamav3_sightings", default=())


def leave_sightings(sightings: Iterable[Sighting]) -> None:
    """In place of any that are there."""
    _SIGHTINGS.set(tuple(sightings))


def find_sighting(model_key: str) -> Sighting | None:
    """What the hook saw of this request's head, as a head of that model."""
    return next((sighting for sighting in _SIGHTINGS.get() if sighting.model_key == model_key), None)
