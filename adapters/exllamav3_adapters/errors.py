"""What can go wrong in an engine, as the plugin sees it.

EngineError
├── InvalidRequest                the request can never work; the caller must change it
│   └── ContextLengthExceeded     the prompt does not fit the model's context
├── QueueFull                     too many requests wait; try again later
├── GenerationTimeout             the request ran out of its time
├── JobFailed                     a fault in this one job; other jobs go on
└── EngineUnavailable             no engine can answer now
    ├── LoadFailed                the model could not be loaded
    └── EngineDied                the engine's process ended, or its scheduler broke, under the request

Each crosses the process boundary as its class name and its fields (see `wire.py`), so every class here
is constructible from its public attributes alone.
"""

from __future__ import annotations


class EngineError(Exception):
    """Base of all errors that an engine raises on purpose. `message` says what to do about it."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class InvalidRequest(EngineError):
    """The request is at fault. `param` names the offending field in the client's own words, if one is known."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class ContextLengthExceeded(InvalidRequest):
    """The prompt, or prompt and answer, cannot fit. `max_tokens` is the most that the context holds of both."""

    def __init__(self, message: str, param: str | None = None, *, prompt_tokens: int = 0, max_tokens: int = 0) -> None:
        super().__init__(message, param)
        self.prompt_tokens = prompt_tokens
        self.max_tokens = max_tokens


class QueueFull(EngineError):
    """Too many requests wait for this model. `retry_after_seconds` is an estimate."""

    def __init__(self, message: str, retry_after_seconds: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds


class GenerationTimeout(EngineError):
    """The request's own time limit passed while it was being generated."""


class JobFailed(EngineError):
    """A sampler, filter or token of this one request failed. The engine and its other jobs are unharmed."""


class EngineUnavailable(EngineError):
    """The engine cannot take requests now; the message gives the reason."""


class LoadFailed(EngineUnavailable):
    """The model could not be loaded; the message names the setting or file at fault."""


class EngineDied(EngineUnavailable):
    """The engine's process or scheduler ended while it held the request."""
