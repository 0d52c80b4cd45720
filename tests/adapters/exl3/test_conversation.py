"""A conversation goes on from the tokens that were generated, however its text would be tokenised now."""

# ruff: noqa: E402 - exllamav3 can only be imported after `install`

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import torch

from exllamav3_adapters.cpu.install import install

install()

from exl3_requests import answer
from tiny_model import write_merging_tokenizer, write_tiny_hybrid, write_tiny_model

from exllamav3_adapters.contract import Chat, GenerationParams, Grammar, Message, Prompt, Text
from exllamav3_adapters.engine_settings import EngineSettings, MemoryOptions, ModelOptions
from exllamav3_adapters.exl3.engine import Exl3Engine
from exllamav3_adapters.registry import find_engine

Load = Callable[..., Awaitable[Exl3Engine]]
VOCABULARY = 320
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{{ '<|im_start|>assistant\n' }}"
)
PAGE = 256
WORDS = Grammar(kind="regex", source="[a-z .\\n]+")
"""Text that random weights would seldom write: they also sample control tokens, after which nothing is kept."""
SYSTEM: Message = {"role": "system", "content": "tea toast site " * 30}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("conversations")
    folders = {
        "dense": write_tiny_model(root / "dense", vocab_size=VOCABULARY),
        "hybrid": write_tiny_hybrid(root / "hybrid", vocab_size=VOCABULARY),
    }
    for folder in folders.values():
        write_merging_tokenizer(folder, VOCABULARY)
        (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folders


@pytest_asyncio.fixture
async def start(folders: dict[str, Path]) -> AsyncIterator[Load]:
    engines: list[Exl3Engine] = []

    async def start(kind: str = "dense", memory: MemoryOptions | None = None, **options: Any) -> Exl3Engine:
        sizes: dict[str, Any] = {"max_seq_len": 4096, "cache_size": 4096, "chunk_size": 256} | options
        settings = EngineSettings(
            model_key=kind,
            model=ModelOptions(model_dir=str(folders[kind]), **sizes),
            memory=memory or MemoryOptions(),
        )
        engine = await find_engine("cpu").load(settings, lambda progress: None)
        assert isinstance(engine, Exl3Engine)
        engines.append(engine)
        return engine

    yield start
    for engine in engines:
        await engine.close()


def sampled(max_tokens: int, seed: int = 1, **params: Any) -> GenerationParams:
    return GenerationParams(max_tokens=max_tokens, seed=seed, **params)


def user(content: str) -> Message:
    return {"role": "user", "content": content}


def said(content: str) -> Message:
    return {"role": "assistant", "content": content}


async def ask(engine: Exl3Engine, messages: list[Message], params: GenerationParams, **options: Any) -> Any:
    """(the prompt, the answer's text, its last event)"""
    prompt = await engine.render(Chat(messages=messages))
    return (prompt, *await answer(engine.generate(prompt, params, **options)))


@pytest.fixture
def forced(on_next_job: Any) -> Callable[[tuple[int, ...]], None]:
    """Has the next answer consist of these tokens."""

    def force(token_ids: tuple[int, ...]) -> None:
        on_next_job(lambda job: job.constrain_output_now(torch.tensor([token_ids])))

    return force


async def follow_up(
    engine: Exl3Engine, forced: Any, token_ids: tuple[int, ...], params: GenerationParams | None = None
) -> tuple[tuple[int, ...], str]:
    """The tokens that a follow-up has after the first prompt, which an answer of exactly these tokens had."""
    forced(token_ids)
    params = params or sampled(len(token_ids))
    prompt, text, _ = await ask(engine, [user("tea?")], params)
    after = await engine.render(Chat(messages=[user("tea?"), said(text), user("more")]))
    assert after.token_ids[: len(prompt.token_ids)] == prompt.token_ids
    return after.token_ids[len(prompt.token_ids) :], text


def end(engine: Exl3Engine) -> tuple[int, ...]:
    return engine._renderer.encode("<|im_end|>\n<|im_start|>user\nmore<|im_end|>\n<|im_start|>assistant\n")


def letters(engine: Exl3Engine, text: str) -> tuple[int, ...]:
    """A token a letter."""
    token_ids = tuple(token for letter in text for token in engine._renderer.encode(letter))
    assert token_ids != engine._renderer.encode(text)
    return token_ids


async def test_sampled_tokens_are_kept_over_many_turns(start: Load) -> None:
    engine = await start()
    messages, known, num_unusual = [SYSTEM], 0, 0
    for turn in range(6):
        messages.append(user(f"toast {turn}"))
        prompt, text, finished = await ask(engine, messages, sampled(150, seed=turn, grammar=WORDS))
        assert finished.cached_tokens >= (known - 1) // PAGE * PAGE
        usual = engine._renderer.encode(engine._renderer.render_text(Chat(messages=messages)))
        num_unusual += prompt.token_ids != usual
        messages.append(said(text))
        known = len(prompt.token_ids) + finished.completion_tokens - (finished.reason == "stop")
    assert num_unusual == 5, "random tokens are not what the tokenizer would cut"


async def test_a_hybrid_computes_only_what_is_new(start: Load) -> None:
    memory = MemoryOptions(sysmem_kv_cache=64)
    engine = await start("hybrid", memory, recurrent_frontier_checkpoints=True)
    messages, known = [SYSTEM], 0
    for turn in range(6):
        messages.append(user(f"toast {turn}"))
        prompt, text, finished = await ask(engine, messages, sampled(50, seed=turn, grammar=WORDS))
        assert finished.cached_tokens >= known - 1
        messages.append(said(text))
        known = len(prompt.token_ids) + finished.completion_tokens - (finished.reason == "stop")


@pytest.mark.parametrize(
    ("words", "params", "num_sent"),
    [
        ("toast</s>more", {"stop": ("</s>",)}, 5),
        ("toast \U0001f600", {"max_tokens": 8}, 8),
        ("toast\x02", {}, 5),
        ("toast is easy " * 30, {}, 420),
    ],
    ids=["stop string", "broken character", "end of turn", "requeued"],
)
async def test_a_hybrid_resumes_at_the_end_of_what_was_sent(
    start: Load, forced: Any, words: str, params: dict[str, Any], num_sent: int
) -> None:
    engine = await start("hybrid", MemoryOptions(sysmem_kv_cache=64), recurrent_frontier_checkpoints=True)
    forced(tuple(2 if letter == "\x02" else token for letter in words for token in engine._renderer.encode(letter)))
    prompt, text, _ = await ask(engine, [user("tea?")], sampled(**({"max_tokens": len(words)} | params)))
    _, _, finished = await ask(engine, [user("tea?"), said(text), user("more")], sampled(1))
    assert finished.cached_tokens >= len(prompt.token_ids) + num_sent - 1


async def test_an_answer_in_unusual_tokens_keeps_them(start: Load, forced: Any) -> None:
    engine = await start()
    token_ids = letters(engine, "the toast is easy")
    found, text = await follow_up(engine, forced, token_ids)
    assert text == "the toast is easy"
    assert found == (*token_ids, *end(engine))


async def test_the_end_of_turn_token_comes_from_the_template(start: Load, forced: Any) -> None:
    engine = await start()
    token_ids = letters(engine, "toast")
    found, _ = await follow_up(engine, forced, (*token_ids, *engine._renderer.encode("<|im_end|>")))
    assert found == (*token_ids, *end(engine))


async def test_text_that_looks_like_a_special_token_stays_text(start: Load, forced: Any) -> None:
    engine = await start()
    token_ids = tuple(token for letter in "<|im_end|>" for token in engine._renderer.encode(letter))
    assert len(token_ids) == 10
    found, text = await follow_up(engine, forced, token_ids)
    assert text == "<|im_end|>"
    assert found == (*token_ids, *end(engine))
    other = await engine.render(Chat(messages=[user("site?"), said("<|im_end|>")]))
    assert other.token_ids.count(2) == 3, "of a client that nobody answered so"


async def test_what_a_stop_string_took_back_is_not_kept(start: Load, forced: Any) -> None:
    engine = await start()
    token_ids = letters(engine, "toast</s>more")
    found, text = await follow_up(engine, forced, token_ids, sampled(40, stop=("</s>",)))
    assert text == "toast"
    assert found == (*token_ids[:5], *end(engine))


async def test_a_token_that_a_stop_string_begins_in_is_tokenised_anew(start: Load, forced: Any) -> None:
    engine = await start()
    [token] = engine._renderer.encode("ea")
    found, text = await follow_up(engine, forced, (*letters(engine, "est"), token), sampled(40, stop=("a",)))
    assert text == "este"
    assert found == (*letters(engine, "est"), *engine._renderer.encode("e"), *end(engine))


async def test_a_character_that_max_tokens_cut_keeps_its_tokens(start: Load, forced: Any) -> None:
    engine = await start()
    token_ids = engine._renderer.encode("tea \U0001f600")
    found, text = await follow_up(engine, forced, token_ids[:-2])
    assert text.startswith("tea \ufffd")
    assert found == (*token_ids[:-2], *end(engine))


async def test_an_answer_without_text_changes_nothing(start: Load, forced: Any) -> None:
    engine = await start()
    found, text = await follow_up(engine, forced, engine._renderer.encode("<|im_end|>"))
    assert text == ""
    assert found == end(engine)


async def test_a_long_answer_that_is_requeued_keeps_all_its_tokens(start: Load, forced: Any) -> None:
    engine = await start()
    token_ids = letters(engine, "the toast is easy " * 40 + "x")
    found, _ = await follow_up(engine, forced, token_ids)
    assert found == (*token_ids, *end(engine))


async def test_an_edited_answer_is_tokenised_as_usual(start: Load, forced: Any) -> None:
    engine = await start()
    forced(letters(engine, "toast"))
    prompt, _, _ = await ask(engine, [user("tea?")], sampled(5))
    edited = await engine.render(Chat(messages=[user("tea?"), said("tests"), user("more")]))
    assert edited.token_ids[len(prompt.token_ids) :] == (*engine._renderer.encode("tests"), *end(engine))


async def test_each_of_several_answers_to_one_prompt_keeps_its_own(start: Load, forced: Any) -> None:
    engine = await start()
    first, second = letters(engine, "toast"), letters(engine, "teas")
    found = {}
    for token_ids in (first, second):
        forced(token_ids)
        await ask(engine, [user("tea?")], sampled(len(token_ids)))
    for text in ("toast", "teas"):
        prompt = await engine.render(Chat(messages=[user("tea?"), said(text), user("more")]))
        found[text] = prompt.token_ids[-len(end(engine)) - len(text) : -len(end(engine))]
    assert found == {"toast": first, "teas": second}


async def test_what_is_not_retained_is_not_kept(start: Load, forced: Any) -> None:
    engine = await start()
    forced(letters(engine, "toast"))
    await ask(engine, [user("tea?")], sampled(5), retain=False)
    again = await engine.render(Chat(messages=[user("tea?"), said("toast")]))
    assert again.token_ids == engine._renderer.encode(
        engine._renderer.render_text(Chat(messages=[user("tea?"), said("toast")]))
    )


async def test_what_is_forgotten_is_not_kept(start: Load, forced: Any) -> None:
    engine = await start()
    forced(letters(engine, "toast"))
    prompt, _, _ = await ask(engine, [user("tea?")], sampled(5))
    await engine.forget(Prompt(token_ids=prompt.token_ids[:4]))
    again = await engine.render(Chat(messages=[user("tea?"), said("toast")]))
    assert again.token_ids == engine._renderer.encode(
        engine._renderer.render_text(Chat(messages=[user("tea?"), said("toast")]))
    )


async def test_what_is_forgotten_while_it_is_answered_is_not_kept(start: Load, forced: Any) -> None:
    engine = await start()
    forced(letters(engine, "toast"))
    prompt = await engine.render(Chat(messages=[user("tea?")]))
    stream = engine.generate(prompt, sampled(5))
    await anext(stream)
    await engine.forget(prompt)
    await answer(stream)
    assert not engine._renderer.conversations.num_tokens


async def test_an_answer_whose_reader_left_keeps_what_was_read(start: Load, forced: Any) -> None:
    engine = await start()
    token_ids = letters(engine, "the toast is easy " * 60)
    forced(token_ids)
    prompt = await engine.render(Chat(messages=[user("tea?")]))
    stream = engine.generate(prompt, sampled(1000))
    read = ""
    async for event in stream:
        read += event.text if isinstance(event, Text) else ""
        if len(read) > 20:
            break
    await stream.aclose()
    while (await engine.stats()).active_requests:
        pass
    after = await engine.render(Chat(messages=[user("tea?"), said(read), user("more")]))
    assert after.token_ids == (*prompt.token_ids, *token_ids[: len(read)], *end(engine))


async def test_plain_text_that_goes_on_from_an_answer_keeps_its_tokens(start: Load, forced: Any) -> None:
    engine = await start()
    prompt = await engine.tokenize("tea and")
    token_ids = letters(engine, " toast")
    forced(token_ids)
    text, _ = await answer(engine.generate(prompt, sampled(6)))
    after = await engine.tokenize(f"tea and{text}, eat")
    assert after.token_ids == (*prompt.token_ids, *token_ids, *engine._renderer.encode(", eat"))


async def test_an_answer_to_tokens_without_text_is_not_kept(start: Load, forced: Any) -> None:
    engine = await start()
    prompt = Prompt(token_ids=engine._renderer.encode("tea and"))
    forced(letters(engine, " toast"))
    await answer(engine.generate(prompt, sampled(6)))
    assert (await engine.tokenize("tea and toast")).token_ids == engine._renderer.encode("tea and toast")


async def test_the_head_is_counted_in_a_prompt_with_kept_tokens(start: Load, forced: Any) -> None:
    engine = await start()
    forced(letters(engine, "toast"))
    first, text, _ = await ask(engine, [SYSTEM, user("tea?")], sampled(5))
    after = await engine.render(Chat(messages=[SYSTEM, user("tea?"), said(text), user("more")]))
    assert after.num_head_tokens == first.num_head_tokens > 0
