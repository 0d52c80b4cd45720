"""Drafts from repeated text, and prefill beside decoding, as far as the CPU engine can show them."""

# ruff: noqa: E402 - exllamav3 can only be imported after `install`

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from exllamav3_adapters.cpu.install import install

install()

from exl3_requests import answer, greedy, prompt
from tiny_model import write_tiny_hybrid, write_tiny_model

from exllamav3_adapters.contract import Prompt, Started, Text, TokenLogprob
from exllamav3_adapters.engine_settings import DraftOptions, EngineSettings, MemoryOptions, ModelOptions
from exllamav3_adapters.errors import LoadFailed
from exllamav3_adapters.exl3.engine import Exl3Engine
from exllamav3_adapters.registry import find_engine

LoadDraft = Callable[..., Awaitable[Exl3Engine]]

NGRAM = DraftOptions(draft_mode="ngram", draft_num_tokens=4)
HYBRID = DraftOptions(hybrid_draft_tokens=4)
REPEATED = Prompt(token_ids=tuple(3 + index % 7 for index in range(300)))
"""Whose greedy answers repeat themselves too."""


@pytest_asyncio.fixture
async def load_draft(tiny_folder: Path) -> AsyncIterator[LoadDraft]:
    engines: list[Exl3Engine] = []

    async def load(
        draft: DraftOptions, memory: MemoryOptions | None = None, folder: Path = tiny_folder, **model: Any
    ) -> Exl3Engine:
        sizes: dict[str, Any] = {"max_seq_len": 4096, "cache_size": 4096, "chunk_size": 256} | model
        options = ModelOptions(model_dir=str(folder), **sizes)
        settings = EngineSettings(model_key="m", model=options, memory=memory or MemoryOptions(), draft=draft)
        engine = await find_engine("cpu").load(settings, lambda progress: None)
        assert isinstance(engine, Exl3Engine)
        engines.append(engine)
        return engine

    yield load
    for engine in engines:
        await engine.close()


def count_steps(engine: Exl3Engine) -> list[int]:
    """Grows by the tokens that each forward of the model looks at."""
    model, steps = engine._scheduler._generator.model, []
    forward = model.forward

    def counted(input_ids: Any, params: Any) -> Any:
        steps.append(input_ids.shape[1])
        return forward(input_ids=input_ids, params=params)

    model.forward = counted
    return steps


async def pieces(stream: AsyncIterator[Any]) -> list[TokenLogprob]:
    return [token async for event in stream if isinstance(event, Text) for token in event.logprobs]


@pytest.mark.parametrize("draft", [NGRAM, HYBRID], ids=["ngram", "hybrid"])
async def test_drafts_change_the_steps_and_not_the_answers(load_draft: LoadDraft, draft: DraftOptions) -> None:
    params = greedy(60, ignore_eos=True)
    prompts = [REPEATED, prompt(400, seed=1), prompt(300, seed=2)]
    plain = await load_draft(DraftOptions())
    expected = [await answer(plain.generate(each, params)) for each in prompts]
    drafting = await load_draft(draft)
    found = await asyncio.gather(*(answer(drafting.generate(each, params)) for each in prompts))
    assert [text for text, _ in found] == [text for text, _ in expected]
    assert all(finished.completion_tokens == 60 for _, finished in found)


async def test_accepted_drafts_save_steps(load_draft: LoadDraft) -> None:
    engine = await load_draft(NGRAM)
    steps = count_steps(engine)
    _, finished = await answer(engine.generate(REPEATED, greedy(60, ignore_eos=True, logit_bias={70: 100.0})))
    assert finished.completion_tokens == 60
    assert len(steps) < 40


async def test_probabilities_and_stop_strings_are_those_without_drafts(load_draft: LoadDraft) -> None:
    plain, drafting = await load_draft(DraftOptions()), await load_draft(NGRAM)
    text, _ = await answer(plain.generate(REPEATED, greedy(60, ignore_eos=True)))
    params = greedy(60, ignore_eos=True, top_logprobs=2, stop=(text[20:23],))
    expected, found = [await pieces(engine.generate(REPEATED, params)) for engine in (plain, drafting)]
    assert [token.token for token in found] == [token.token for token in expected]
    assert [token.logprob for token in found] == pytest.approx([token.logprob for token in expected], abs=1e-4)
    assert [[text for text, _ in token.top] for token in found] == [
        [text for text, _ in token.top] for token in expected
    ]


async def test_effective_settings_name_the_drafts(load_draft: LoadDraft) -> None:
    settings = (await load_draft(NGRAM)).info.effective_settings
    assert settings["draft_model.ngram_match_min"] == "2 (exllamav3)"
    assert settings["draft_model.draft_num_tokens"] == "4 (exllamav3)"


async def test_a_models_own_head_is_refused_on_a_cpu(load_draft: LoadDraft) -> None:
    with pytest.raises(LoadFailed, match=r"draft_model.draft_mode: mtp is not available on engine cpu; use ngram"):
        await load_draft(DraftOptions(draft_mode="mtp"))


@pytest.mark.parametrize("further", [{}, {"draft_num_tokens": 6, "dynamic_draft": True, "hybrid_draft_tokens": 8}])
async def test_a_draft_model_changes_the_steps_and_not_the_answers(
    load_draft: LoadDraft, tiny_folder: Path, further: dict[str, Any]
) -> None:
    params, prompts = greedy(60, ignore_eos=True), [prompt(300, seed=1), prompt(400, seed=2)]
    plain = await load_draft(DraftOptions())
    expected = [await answer(plain.generate(each, params)) for each in prompts]
    drafting = await load_draft(DraftOptions(draft_mode="model", draft_model_dir=str(tiny_folder), **further))
    steps = count_steps(drafting)
    found = await asyncio.gather(*(answer(drafting.generate(each, params)) for each in prompts))
    assert [text for text, _ in found] == [text for text, _ in expected]
    assert len(steps) < 20  # the draft model is the model itself, so that every draft is accepted


async def test_a_draft_model_that_is_wrong_costs_steps_and_changes_no_answer(
    load_draft: LoadDraft, tmp_path: Path
) -> None:
    other = write_tiny_model(tmp_path / "other", num_hidden_layers=1)
    params = greedy(60, ignore_eos=True)
    text, _ = await answer((await load_draft(DraftOptions())).generate(REPEATED, params))
    drafting = await load_draft(DraftOptions(draft_mode="model", draft_model_dir=str(other)))
    assert (await answer(drafting.generate(REPEATED, params)))[0] == text
    again, finished = await answer(drafting.generate(REPEATED, params))
    assert (again, finished.cached_tokens) == (text, 299)


async def test_a_draft_model_of_another_family_is_refused(load_draft: LoadDraft, tmp_path: Path) -> None:
    other = write_tiny_model(tmp_path / "other")
    tokenizer = json.loads((other / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    tokenizer["model"]["vocab"] = dict(zip(vocabulary, reversed(vocabulary.values()), strict=True))
    (other / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(
        LoadFailed, match=r"draft_model.draft_model_dir: \d+ of the \d+ tokens in .* are not the model's"
    ):
        await load_draft(DraftOptions(draft_mode="model", draft_model_dir=str(other)))


@pytest.mark.parametrize(("draft", "option"), [(NGRAM, "draft_mode"), (HYBRID, "hybrid_draft_tokens")])
async def test_drafts_on_a_hybrid_model_are_refused_on_a_cpu(
    load_draft: LoadDraft, tmp_path: Path, draft: DraftOptions, option: str
) -> None:
    with pytest.raises(LoadFailed, match=rf"draft_model.{option}: engine cpu cannot draft .* recurrent layers"):
        await load_draft(draft, folder=write_tiny_hybrid(tmp_path / "hybrid"))


async def test_a_shared_chunk_and_a_cooldown_reach_the_scheduler(load_draft: LoadDraft) -> None:
    engine = await load_draft(DraftOptions(), chunk_size=1024, shared_chunk_size=256, prefill_cooldown=1)
    generator = engine._scheduler._generator
    assert (generator.max_chunk_size, generator.shared_chunk_size, generator.prefill_cooldown) == (1024, 256, 1)


async def test_a_prompt_beside_an_answer_is_prefilled_in_shared_chunks(load_draft: LoadDraft) -> None:
    engine = await load_draft(DraftOptions(), chunk_size=1024, shared_chunk_size=256, prefill_cooldown=2)
    generator = engine._scheduler._generator
    chunks: list[int] = []
    prefill = generator.model.prefill

    def measured(input_ids: Any, params: Any) -> Any:
        chunks.append(input_ids.shape[1])
        return prefill(input_ids=input_ids, params=params)

    generator.model.prefill = measured
    long_answer = engine.generate(prompt(20), greedy(3000, ignore_eos=True))
    events = aiter(long_answer)
    while isinstance(await anext(events), Started):  # until it decodes
        pass
    await answer(engine.generate(prompt(1400, seed=3), greedy(2)))
    await long_answer.aclose()
    assert max(chunks[1:]) == 256


async def test_a_shared_chunk_beyond_the_chunk_is_refused(load_draft: LoadDraft) -> None:
    with pytest.raises(LoadFailed, match=r"model.shared_chunk_size: 512 is more than model.chunk_size \(256\)"):
        await load_draft(DraftOptions(), shared_chunk_size=512)


async def test_intervals_of_checkpoints_reach_a_hybrid_models_scheduler(load_draft: LoadDraft, tmp_path: Path) -> None:
    folder = write_tiny_hybrid(tmp_path / "hybrid")
    (folder / "chat_template.jinja").write_text("{% for m in messages %}{{ m.content }}\n{% endfor %}")
    memory = MemoryOptions(recurrent_checkpoint_interval=512, recurrent_checkpoint_interval_pp=1024)
    generator = (await load_draft(DraftOptions(), memory, folder))._scheduler._generator
    assert generator.recurrent_checkpoint_interval == 512
    assert generator.recurrent_checkpoint_interval_pp == 1024
