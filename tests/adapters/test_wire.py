import inspect
from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from exllamav3_adapters import contract, engine_settings, errors, wire
from exllamav3_adapters.errors import EngineError, InvalidRequest

SCALARS: dict[Any, st.SearchStrategy[Any]] = {
    int: st.integers(-(2**63), 2**64 - 1),
    float: st.floats(allow_nan=False),
    bool: st.booleans(),
    str: st.text(max_size=8),
    type(None): st.none(),
}
SCALARS[Any] = st.recursive(
    st.one_of(*SCALARS.values()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


def values_of(hint: Any) -> st.SearchStrategy[Any]:
    """Every value of a type that the contract names, every field varied. Sequences arrive as lists."""
    arguments = get_args(hint)
    if hint in SCALARS:
        return SCALARS[hint]
    if is_dataclass(hint):
        return st.builds(hint, **{name: values_of(field) for name, field in get_type_hints(hint).items()})
    origin = get_origin(hint)
    if origin is Literal:
        return st.sampled_from(arguments)
    if origin is tuple and Ellipsis not in arguments:
        return st.tuples(*map(values_of, arguments))
    if origin is tuple:
        return st.lists(values_of(arguments[0]), max_size=3).map(tuple)
    if origin is Sequence:
        return st.lists(values_of(arguments[0]), max_size=3)
    if origin is Mapping:
        return st.dictionaries(*map(values_of, arguments), max_size=3)
    assert origin in (Union, UnionType), f"no values of {hint} here yet"
    return st.one_of(*map(values_of, arguments))


chats, heads, prompts, params, infos = map(
    values_of, (contract.Chat, contract.Head, contract.Prompt, contract.GenerationParams, contract.EngineInfo)
)
answers = st.one_of(*map(values_of, (contract.StoredPrefix, contract.EngineStats, contract.Prompt)))
events = st.one_of(*map(values_of, wire.EVENTS))
ids = st.integers(0, 2**40)
to_child = st.one_of(
    st.builds(wire.Load, values_of(engine_settings.EngineSettings)),
    st.builds(wire.Render, ids, chats),
    st.builds(wire.RenderHead, ids, heads),
    st.builds(wire.Tokenize, ids, st.text()),
    st.builds(wire.Generate, ids, prompts, params, st.booleans()),
    st.builds(wire.Prefill, ids, prompts, st.booleans()),
    st.builds(wire.Unpin, ids, prompts),
    st.builds(wire.ListStoredPrefixes, ids, st.floats(allow_nan=False)),
    st.builds(wire.Forget, ids, prompts),
    st.builds(wire.GetStats, ids),
    st.builds(wire.Close, ids),
    st.builds(wire.Cancel, ids),
)

ERRORS = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, EngineError)]
EXAMPLES = {
    errors.InvalidRequest: errors.InvalidRequest("too hot; lower it", "temperature"),
    errors.ContextLengthExceeded: errors.ContextLengthExceeded("long", "messages", prompt_tokens=9, max_tokens=8),
    errors.QueueFull: errors.QueueFull("full", 2.5),
}


@settings(deadline=None, max_examples=50)
@given(to_child)
def test_a_message_to_the_child_arrives_as_it_was_sent(message: wire.ToChild) -> None:
    assert wire.decode_to_child(wire.encode(message)) == message


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(ids, events), min_size=1, max_size=4))
def test_events_arrive_as_they_were_sent(sent: list[tuple[int, Any]]) -> None:
    frame = wire.encode(wire.Events([wire.pack_event(request_id, event) for request_id, event in sent]))
    batch = wire.decode_to_parent(frame)
    assert isinstance(batch, wire.Events)
    assert [(request_id, wire.unpack_event(kind, event)) for request_id, kind, event in batch.events] == sent


@settings(deadline=None, max_examples=50)
@given(answers)
def test_an_answer_arrives_as_it_was_sent(value: Any) -> None:
    reply = wire.decode_to_parent(wire.encode(wire.Reply(1, wire.pack_value(value))))
    assert isinstance(reply, wire.Reply)
    assert wire.unpack_value(reply.value, type(value)) == value


@settings(deadline=None, max_examples=50)
@given(values_of(contract.LoadProgress), infos)
def test_what_is_said_while_loading_arrives(report: contract.LoadProgress, info: contract.EngineInfo) -> None:
    for message in (wire.Loading(report), wire.Loaded(info)):
        assert wire.decode_to_parent(wire.encode(message)) == message


def test_every_value_of_the_contract_is_held_by_one_of_these_tests() -> None:
    covered = {"Head", "Chat", "Prompt", "Grammar", "GenerationParams", "LoadProgress", "EngineInfo", "TokenLogprob"}
    covered |= {"ToolUse", "ChatAnswer", "PromptImage"}  # in GenerationParams, and in Prompt
    covered |= {"StoredPrefix", "EngineStats", "EngineSettings"} | {event.__name__ for event in wire.EVENTS}
    assert covered == {name for name, value in vars(contract).items() if is_dataclass(value)}


def test_an_image_arrives_as_its_bytes() -> None:
    messages = [{"content": [{"type": "image", "data": b"\x89PNG\xff"}]}]
    arrived = wire.decode_to_child(wire.encode(wire.Render(1, contract.Chat(messages=messages))))
    assert isinstance(arrived, wire.Render)
    assert arrived.chat.messages == messages


def test_the_events_are_those_of_the_contract() -> None:
    assert set(wire.EVENTS) == {
        *contract.GenerationEvent.__args__,  # type: ignore[attr-defined]
        *contract.PrefillEvent.__args__,  # type: ignore[attr-defined]
    }


def test_every_error_is_in_the_table_with_all_of_its_attributes() -> None:
    assert {kind for kind, _ in wire.ERRORS.values()} == set(ERRORS)
    for kind in ERRORS:
        error = EXAMPLES[kind] if kind in EXAMPLES else kind("what to do")
        assert wire.ERRORS[kind.__name__] == (kind, tuple(vars(error)))


@pytest.mark.parametrize("kind", ERRORS)
def test_an_error_arrives_as_it_was_raised(kind: type[EngineError]) -> None:
    error = EXAMPLES[kind] if kind in EXAMPLES else kind("what to do")
    for message in (wire.Failure(3, wire.pack_error(error)), wire.NotLoaded(wire.pack_error(error))):
        arrived = wire.decode_to_parent(wire.encode(message))
        assert isinstance(arrived, wire.Failure | wire.NotLoaded)
        copy = wire.unpack_error(arrived.error)
        assert type(copy) is kind
        assert vars(copy) == vars(error)
        assert str(copy) == str(error)


def test_an_adapters_own_error_arrives_as_the_one_it_derives_from() -> None:
    class BadFilter(errors.JobFailed):
        pass

    assert type(wire.unpack_error(wire.pack_error(BadFilter("no")))) is errors.JobFailed


@pytest.mark.parametrize("content", ["half a \ud83e", 2**70, object(), {1, "a"}.__iter__()])
def test_what_cannot_travel_is_refused_without_being_quoted(content: object) -> None:
    chat = contract.Chat(messages=[{"role": "user", "content": content}])
    with pytest.raises(InvalidRequest) as caught:
        wire.encode(wire.Render(1, chat))
    assert "half a" not in str(caught.value)
