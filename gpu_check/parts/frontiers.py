"""A conversation of a hybrid model goes on from the exact end of what was computed, and as if it had been computed."""

from __future__ import annotations

from dataclasses import dataclass, field

from exllamav3_adapters.contract import Engine, Prompt
from exllamav3_adapters.engine_settings import MemoryOptions
from gpu_check.check import Check, Figures, expect
from gpu_check.comparison import RECURRENT, Comparison
from gpu_check.random_tokenizer import calibration_text
from gpu_check.requests import Answer, ask

_FIRST_CHARACTERS, _NEW_CHARACTERS = 2200, 400
_ANSWER_TOKENS = 24
_MOST_REPLAYED = 1
"""Known tokens that a turn computes again: the last one, whose logits are wanted."""


@dataclass(slots=True)
class _Conversation:
    prompts: list[Prompt] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)
    replayed: list[int] = field(default_factory=list)
    """By turn from the second on: tokens that had been computed before."""


async def check_frontiers(check: Check) -> Figures:
    """A chat with checkpoints at every end of turn, against one without, and each answer against a cold one."""
    turns = check.pick(card=8, cpu=3)
    memory = MemoryOptions(sysmem_kv_cache=256, sysmem_recurrent_cache=512)
    found = Comparison(RECURRENT)
    check.say("a conversation with frontier checkpoints")
    settings = check.settings("hybrid", memory, recurrent_frontier_checkpoints=True)
    async with check.loaded(settings) as engine:
        chat = await _converse(engine, turns)
    check.say("the same without")
    async with check.loaded(check.settings("hybrid", memory)) as engine:
        stock = await _converse(engine, turns)
    check.say("each turn's answer, cold")
    async with check.loaded(check.settings("hybrid", MemoryOptions(sysmem_recurrent_cache=0))) as engine:
        for turn, (prompt, answer) in enumerate(zip(chat.prompts, chat.answers, strict=True)):
            await engine.forget(prompt)
            cold = await ask(engine, prompt, _ANSWER_TOKENS, logprobs=True)
            expect(cold.cached_tokens == 0, f"turn {turn} is not cold: {cold.cached_tokens} tokens are cached")
            found.add(f"turn {turn}", cold, answer)
    expect(max(chat.replayed) <= _MOST_REPLAYED, f"known tokens computed again, by turn: {chat.replayed}")
    found.check()
    return {**found.figures(), "replayed_tokens": chat.replayed, "replayed_tokens_without": stock.replayed}


async def _converse(engine: Engine, turns: int) -> _Conversation:
    """Plain text, as a client sends it: each turn is the one before, the engine's own answer, and new words."""
    words = calibration_text("wiki")
    chat, text, read = _Conversation(), words[:_FIRST_CHARACTERS], _FIRST_CHARACTERS
    for _ in range(turns):
        prompt = await engine.tokenize(text)
        answer = await ask(engine, prompt, _ANSWER_TOKENS, logprobs=True)
        if chat.prompts:
            known = len(chat.prompts[-1].token_ids) + _ANSWER_TOKENS
            chat.replayed.append(max(0, known - answer.cached_tokens))
        chat.prompts.append(prompt)
        chat.answers.append(answer)
        text += answer.text + words[read : read + _NEW_CHARACTERS]
        read += _NEW_CHARACTERS
    return chat
