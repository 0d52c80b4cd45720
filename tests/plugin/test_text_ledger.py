"""What a streamed completion has of probabilities and ends, however LiteLLM has cut its chunks."""

from __future__ import annotations

from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

from exllamav3_adapters.contract import Finished, Text, TokenLogprob
from litellm_exllamav3.text_answer import text_logprobs
from litellm_exllamav3.text_ledger import TextLedger

DONE = Finished(reason="length", prompt_tokens=1, cached_tokens=0, completion_tokens=1)


def piece(text: str) -> Text:
    return Text(text=text, logprobs=tuple(TokenLogprob(token=token, logprob=-1.0) for token in text))


def chunk(text: str | None, index: int = 0, reason: str | None = None) -> Any:
    """As LiteLLM makes one."""
    choice = SimpleNamespace(index=index, text=text, finish_reason=reason)
    return SimpleNamespace(object="text_completion", id="c", created=1, model="m", choices=[choice])


async def repaired(ledger: TextLedger, *chunks: Any) -> list[Any]:
    async def stream() -> AsyncIterator[Any]:
        for one in chunks:
            yield one

    return [one["choices"][0] if isinstance(one, dict) else one async for one in ledger.repaired(stream(), dict)]


def offsets(choices: list[Any]) -> list[list[int] | None]:
    return [choice["logprobs"] and choice["logprobs"]["text_offset"] for choice in choices]


async def test_each_chunk_has_the_logprobs_of_its_own_text() -> None:
    ledger = TextLedger()
    ledger.wrote(0, piece("ab"))
    ledger.wrote(0, piece("c"))
    choices = await repaired(ledger, chunk("ab"), chunk("c"), chunk(None, reason="stop"))
    assert offsets(choices) == [[0, 1], [2], None]
    assert [choice["text"] for choice in choices] == ["ab", "c", ""]


async def test_cut_and_joined_chunks_lose_none() -> None:
    ledger = TextLedger()
    for text in ("ab", "c", "d"):
        ledger.wrote(0, piece(text))
    assert offsets(await repaired(ledger, chunk("a"), chunk("bcd"))) == [None, [0, 1, 2, 3]]


async def test_choices_are_told_apart_and_each_ends_once() -> None:
    ledger = TextLedger()
    ledger.wrote(1, piece("x"))
    ledger.wrote(1, DONE)
    ledger.wrote(0, piece("y"))
    choices = await repaired(ledger, chunk("x", 1), chunk(None, 1), chunk("y"), chunk(None, reason="stop"))
    assert [(choice["index"], choice["finish_reason"]) for choice in choices] in (
        [(1, "length"), (1, None), (0, None), (0, "stop")],
        [(1, None), (1, "length"), (0, None), (0, "stop")],
    )


async def test_a_choice_does_not_end_before_its_text() -> None:
    ledger = TextLedger()
    ledger.wrote(1, piece("x"))
    ledger.wrote(1, piece("y"))
    ledger.wrote(1, DONE)
    choices = await repaired(ledger, chunk("x", 1), chunk("y", 1))
    assert [choice["finish_reason"] for choice in choices] == [None, "length"]


async def test_another_providers_chunks_pass_as_they_are() -> None:
    sent = [chunk("x"), "data: x", chunk(None)]
    assert await repaired(TextLedger(), *sent) == sent


def test_of_tokens_that_read_the_same_the_likelier_counts() -> None:
    token = TokenLogprob(token="a", logprob=-2.0, top=(("b", -0.5), ("b", -3.0), ("c", float("-inf"))))
    assert text_logprobs([token])["top_logprobs"] == [{"b": -0.5, "c": -9999.0, "a": -2.0}]
