"""The text of an answer is what was sampled up to its end, no more and no less. The tokens here are forced."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import torch
from exl3_requests import answer, greedy, prompt

from exllamav3_adapters.exl3.engine import Exl3Engine

Load = Callable[..., Awaitable[Exl3Engine]]
END = "<|im_end|>"


async def forced(load: Load, on_next_job: Any, text: str, **params: Any) -> tuple[str, str]:
    """What the engine makes of an answer of exactly these bytes: its text and its finish reason."""
    engine = await load()
    token_ids = (await engine.tokenize(text)).token_ids
    on_next_job(lambda job: job.constrain_output_now(torch.tensor([token_ids])))
    answered, finished = await answer(engine.generate(prompt(20), greedy(len(token_ids), **params)))
    return answered, finished.reason


async def test_the_end_of_turn_token_is_no_text(load: Load, on_next_job: Any) -> None:
    assert await forced(load, on_next_job, f"done{END}") == ("done", "stop")


async def test_what_only_looked_like_a_stop_string_is_text(load: Load, on_next_job: Any) -> None:
    assert await forced(load, on_next_job, f"a < b </{END}", stop=("</answer>",)) == ("a < b </", "stop")


async def test_what_only_looked_like_a_banned_string_is_text(load: Load, on_next_job: Any) -> None:
    assert await forced(load, on_next_job, f"forbid{END}", banned_strings=("forbidden",)) == ("forbid", "stop")


@pytest.mark.parametrize("before", ["", "plain ", "caf\u00e9", "\u65e5\u672c", "\U0001f600"])
async def test_a_stop_string_and_what_follows_is_cut(load: Load, on_next_job: Any, before: str) -> None:
    assert await forced(load, on_next_job, f"{before}</answer>more", stop=("</answer>",)) == (before, "stop")


async def test_a_stop_string_after_a_broken_character_is_cut(load: Load, on_next_job: Any) -> None:
    engine = await load()
    before, broken, stop = [(await engine.tokenize(text)).token_ids for text in ("caf", "\u00e9", "</answer>")]
    forced_ids = torch.tensor([[*before, broken[0], *stop]])
    on_next_job(lambda job: job.constrain_output_now(forced_ids))
    answered, _ = await answer(engine.generate(prompt(20), greedy(40, stop=("</answer>",))))
    assert answered == "caf\ufffd"


async def test_the_first_of_several_stop_strings_ends_the_answer(load: Load, on_next_job: Any) -> None:
    assert await forced(load, on_next_job, "one;two.three", stop=(".", ";")) == ("one", "stop")


async def test_characters_of_several_tokens_arrive_whole(load: Load, on_next_job: Any) -> None:
    text = "\u65e5\u672c \U0001f600 caf\u00e9"
    assert await forced(load, on_next_job, text) == (text, "length")


async def test_a_requeued_answer_goes_on_where_it_was(load: Load, on_next_job: Any) -> None:
    text = "The quick brown fox. " * 60  # several times the chunk of 256 tokens
    assert await forced(load, on_next_job, text) == (text, "length")
