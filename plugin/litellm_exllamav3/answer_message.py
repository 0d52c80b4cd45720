"""A whole answer in OpenAI's form, put together from its events. Plain values: `provider.py` makes them LiteLLM's."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from exllamav3_adapters.contract import (
    Finished,
    Reasoning,
    Text,
    TokenLogprob,
    ToolCallArguments,
    ToolCallStart,
)
from litellm_exllamav3.cut_arguments import as_object

AnswerEvent: TypeAlias = Text | Reasoning | ToolCallStart | ToolCallArguments | Finished
"""What a reader of an answer gets to see."""

NO_ARGUMENTS: Final = "{}"
"""Of a call whose model wrote none: clients parse them as JSON."""
_LEAST_LOGPROB: Final = -9999.0
"""OpenAI's word for an impossible token. JSON has no infinity."""


@dataclass(slots=True)
class _Call:
    id: str
    name: str
    arguments: list[str] = field(default_factory=list)


class AnswerMessage:
    """One of an answer's choices. `finished` is None until its last event was added."""

    def __init__(self) -> None:
        self.finished: Finished | None = None
        self.logprobs: list[TokenLogprob] = []
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._calls: list[_Call] = []

    def add(self, event: AnswerEvent) -> None:
        match event:
            case Text():
                self._text.append(event.text)
                self.logprobs += event.logprobs
            case Reasoning():
                self._reasoning.append(event.text)
            case ToolCallStart():
                assert event.index == len(self._calls), "the calls of an answer come in order"
                self._calls.append(_Call(id=event.id, name=event.name))
            case ToolCallArguments():
                self._calls[event.index].arguments.append(event.text)
            case Finished():
                self.finished = event

    def message(self, *, parsed_calls: bool = False) -> dict[str, Any]:
        """Its content is null where the answer is nothing but calls. `parsed_calls`: the reader takes no arguments but
        JSON objects."""
        text = "".join(self._text)
        message: dict[str, Any] = {"role": "assistant", "content": text if text or not self._calls else None}
        if self._reasoning:
            message["reasoning_content"] = "".join(self._reasoning)
        if self._calls:
            is_cut = self.finished is None or self.finished.reason != "tool_calls"
            message["tool_calls"] = [
                _tool_call(call, "" if is_cut else NO_ARGUMENTS, parsed=parsed_calls) for call in self._calls
            ]
        return message


class WholeAnswer:
    """All choices of an answer."""

    def __init__(self, *, num_choices: int = 1, with_logprobs: bool = False, parsed_calls: bool = False) -> None:
        self._messages = [AnswerMessage() for _ in range(num_choices)]
        self._with_logprobs = with_logprobs
        self._parsed_calls = parsed_calls

    @property
    def complete(self) -> bool:
        return all(message.finished is not None for message in self._messages)

    def add(self, index: int, event: AnswerEvent) -> None:
        self._messages[index].add(event)

    def choices(self) -> list[dict[str, Any]]:
        """`{"index", "message", "finish_reason", "logprobs"}` each, once complete."""
        return [
            {
                "index": index,
                "message": message.message(parsed_calls=self._parsed_calls),
                "finish_reason": message.finished.reason if message.finished is not None else None,
                "logprobs": logprobs_content(message.logprobs) if self._with_logprobs else None,
            }
            for index, message in enumerate(self._messages)
        ]

    def usage(self) -> dict[str, Any]:
        """Once complete."""
        return usage([message.finished for message in self._messages if message.finished is not None])


def _tool_call(call: _Call, default: str, *, parsed: bool) -> dict[str, Any]:
    arguments = "".join(call.arguments) or default
    if parsed:
        arguments = as_object(arguments)
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments}}


def usage(choices: Sequence[Finished]) -> dict[str, Any]:
    """Of all choices together, the first of them first: the prompt is read and counted once."""
    first = choices[0]
    completion_tokens = sum(choice.completion_tokens for choice in choices)
    return {
        "prompt_tokens": first.prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": first.prompt_tokens + completion_tokens,
        "prompt_tokens_details": {"cached_tokens": first.cached_tokens},
    }


def logprobs_content(tokens: Iterable[TokenLogprob]) -> dict[str, Any]:
    """OpenAI's `logprobs` of a choice."""
    return {
        "content": [
            {
                **_token(token.token, token.logprob),
                "top_logprobs": [_token(text, logprob) for text, logprob in token.top],
            }
            for token in tokens
        ]
    }


def _token(text: str, logprob: float) -> dict[str, Any]:
    # Of a token that is a part of a character there is only its replacement left, which is not its bytes.
    encoded = None if "\ufffd" in text else list(text.encode(errors="replace"))
    return {"token": text, "logprob": max(logprob, _LEAST_LOGPROB), "bytes": encoded}
