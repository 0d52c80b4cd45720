"""What an engine's process and its parent say to each other: typed messages in msgpack.

The parent sends a `Load`, then requests, each under an id of its own; the child answers with what the contract's
call returns, or with events for the two that stream. The contract's dataclasses travel as they are; `connection.py`
frames them.
"""

from __future__ import annotations

from typing import Any, TypeAlias, TypeVar

import msgspec

from exllamav3_adapters import errors
from exllamav3_adapters.contract import (
    Chat,
    EngineInfo,
    Finished,
    GenerationParams,
    Head,
    LoadProgress,
    Prefilled,
    PrefillProgress,
    Prompt,
    Reasoning,
    Started,
    Text,
    ToolCallArguments,
    ToolCallStart,
)
from exllamav3_adapters.engine_settings import EngineSettings
from exllamav3_adapters.event_stream import Event

T = TypeVar("T")


class _Message(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Travels as an array that begins with the class's name."""


class Load(_Message, frozen=True):
    settings: EngineSettings


class Request(_Message, frozen=True):
    """A call of the contract."""

    id: int


class Render(Request, frozen=True):
    chat: Chat


class RenderHead(Request, frozen=True):
    head: Head


class Tokenize(Request, frozen=True):
    text: str


class Generate(Request, frozen=True):
    prompt: Prompt
    params: GenerationParams
    retain: bool


class Prefill(Request, frozen=True):
    prompt: Prompt
    pin: bool


class Unpin(Request, frozen=True):
    prompt: Prompt


class ListStoredPrefixes(Request, frozen=True):
    """`Engine.stored_prefixes`."""

    written_after: float


class Forget(Request, frozen=True):
    prompt: Prompt


class GetStats(Request, frozen=True):
    """`Engine.stats`."""


class Close(Request, frozen=True):
    """The last request: the child closes its engine, answers and exits."""


class Cancel(_Message, frozen=True):
    """Nobody waits for the request `id` any more. It may have ended already."""

    id: int


class Malformed(Request, frozen=True):
    """Never sent: what a request becomes that arrives in another shape than the contract's."""

    reason: str


Call: TypeAlias = (
    Render | RenderHead | Tokenize | Generate | Prefill | Unpin | ListStoredPrefixes | Forget | GetStats | Close
)
ToChild: TypeAlias = Load | Call | Cancel


class Loading(_Message, frozen=True):
    progress: LoadProgress


class Loaded(_Message, frozen=True):
    info: EngineInfo


class NotLoaded(_Message, frozen=True):
    error: WireError


class Died(_Message, frozen=True):
    """The loaded engine broke. The child ends now: a device that failed stays so until its process has ended."""

    error: WireError


class Reply(_Message, frozen=True):
    """`value` is what the call of the contract returns."""

    id: int
    value: msgspec.Raw


class Failure(_Message, frozen=True):
    """The request `id` failed; for a stream, after the events that came before."""

    id: int
    error: WireError


class Events(_Message, frozen=True):
    """Events of any number of streams, in order: `(request id, index into EVENTS, event)`."""

    events: list[tuple[int, int, msgspec.Raw]]


class WireError(msgspec.Struct, frozen=True, array_like=True):
    """An `EngineError`: its class's name and its public attributes."""

    name: str
    attributes: dict[str, Any]


ToParent: TypeAlias = Loading | Loaded | NotLoaded | Died | Reply | Failure | Events

EVENTS: tuple[type[Event], ...] = (
    Started,
    PrefillProgress,
    Text,
    Reasoning,
    ToolCallStart,
    ToolCallArguments,
    Finished,
    Prefilled,
)
"""msgspec cannot tell dataclasses of a union apart, so an event travels with its place in this table."""

ERRORS: dict[str, tuple[type[errors.EngineError], tuple[str, ...]]] = {
    "EngineError": (errors.EngineError, ("message",)),
    "InvalidRequest": (errors.InvalidRequest, ("message", "param")),
    "ContextLengthExceeded": (
        errors.ContextLengthExceeded,
        ("message", "param", "prompt_tokens", "max_tokens"),
    ),
    "QueueFull": (errors.QueueFull, ("message", "retry_after_seconds")),
    "GenerationTimeout": (errors.GenerationTimeout, ("message",)),
    "JobFailed": (errors.JobFailed, ("message",)),
    "EngineUnavailable": (errors.EngineUnavailable, ("message",)),
    "LoadFailed": (errors.LoadFailed, ("message",)),
    "EngineDied": (errors.EngineDied, ("message",)),
}

_encoder = msgspec.msgpack.Encoder()
_to_child_decoder: msgspec.msgpack.Decoder[ToChild] = msgspec.msgpack.Decoder(ToChild)
_to_parent_decoder: msgspec.msgpack.Decoder[ToParent] = msgspec.msgpack.Decoder(ToParent)
_event_decoders = tuple(msgspec.msgpack.Decoder(event) for event in EVENTS)


def encode(message: ToChild | ToParent) -> bytes:
    """Raises `InvalidRequest` where a value cannot travel: half a surrogate pair, an integer beyond 64 bits,
    or an object that is no plain value."""
    return _encode(message)


def decode_to_child(frame: bytes) -> ToChild | Malformed:
    """Raises `ValueError` where the frame is no message at all."""
    try:
        return _to_child_decoder.decode(frame)
    except msgspec.ValidationError as error:
        # A message that is no object, say, must fail its own request and not the connection.
        match msgspec.msgpack.decode(frame):
            case [str(), int(request_id), *_]:
                return Malformed(request_id, str(error))
        raise


def decode_to_parent(frame: bytes) -> ToParent:
    return _to_parent_decoder.decode(frame)


def pack_value(value: object) -> msgspec.Raw:
    return msgspec.Raw(_encode(value))


def unpack_value(value: msgspec.Raw, kind: type[T]) -> T:
    return msgspec.msgpack.decode(value, type=kind)


def pack_event(request_id: int, event: Event) -> tuple[int, int, msgspec.Raw]:
    return request_id, EVENTS.index(type(event)), pack_value(event)


def unpack_event(kind: int, event: msgspec.Raw) -> Event:
    return _event_decoders[kind].decode(event)


def pack_error(error: errors.EngineError) -> WireError:
    """An adapter's own subclass travels as the class of `errors.py` that it derives from."""
    name = next(base.__name__ for base in type(error).__mro__ if ERRORS.get(base.__name__, (None,))[0] is base)
    return WireError(name, {attribute: getattr(error, attribute) for attribute in ERRORS[name][1]})


def unpack_error(error: WireError) -> errors.EngineError:
    kind, _ = ERRORS[error.name]
    return kind(**error.attributes)


def _encode(value: object) -> bytes:
    try:
        return _encoder.encode(value)
    except UnicodeEncodeError as error:
        raise errors.InvalidRequest("the request holds half of a surrogate pair; send valid Unicode") from error
    except (TypeError, OverflowError, RecursionError) as error:
        # msgspec's messages name the type at fault, not the value.
        raise errors.InvalidRequest(f"the request holds a value that cannot be sent to the engine: {error}") from error
