"""The fake engine: see the package's docstring, `answer.py` for its answers and `template.py` for its tokens."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn, Self

from exllamav3_adapters.answer_format.find_format import FormatOptions
from exllamav3_adapters.answer_format.parsed_stream import ParsedStream
from exllamav3_adapters.chat_renderer import ChatRenderer
from exllamav3_adapters.chat_template import find_chat_template
from exllamav3_adapters.contract import (
    Chat,
    EngineInfo,
    EngineStats,
    EventStream,
    GenerationParams,
    Head,
    LoadProgress,
    Prompt,
    StoredPrefix,
)
from exllamav3_adapters.engine_settings import EngineSettings, ModelOptions
from exllamav3_adapters.errors import (
    ContextLengthExceeded,
    EngineDied,
    EngineError,
    EngineUnavailable,
    InvalidRequest,
    LoadFailed,
)
from exllamav3_adapters.event_stream import QueuedEventStream, failed_stream
from exllamav3_adapters.fake import template
from exllamav3_adapters.fake.answer import answer
from exllamav3_adapters.fake.images import prepare_images
from exllamav3_adapters.fake.pages import PAGE_SIZE, PageCache
from exllamav3_adapters.fake.scheduler import Job, Pace, Scheduler
from exllamav3_adapters.fake.shared_prefixes import SharedPrefixes
from exllamav3_adapters.token_ids import check_token_ids

_ENVIRONMENT_PREFIX = "EXLLAMAV3_FAKE_"
_DEFAULT_CONTEXT_LENGTH = 8192
_DEFAULT_MAX_BATCH_SIZE = 8
_NUM_LOAD_STEPS = 4
_CRASH_EXIT_STATUS = 70


class FakeEngine:
    """A `contract.Engine` that pretends: deterministic, no model, a real page cache and scheduler in small.

    A token is one UTF-8 byte, a page 256 of them; an answer of n bytes has n completion tokens. With `vision` an image
    is decoded, and stands in the prompt as `images.placeholders` of its digest and size.

    `load` takes the model folder, context length, cache, chunk and batch sizes, `pin_max_fraction`, `vision` and the
    limits of images, the chat template and form of answers, and what belongs to `aging_capture_prefixes` from the
    settings (`model_dir` must be `demo` or a folder that exists), and its speed from the environment, so that a hosted
    fake can be slowed through the process above it:

    - `EXLLAMAV3_FAKE_SECONDS_PER_PREFILL_PAGE`, `EXLLAMAV3_FAKE_SECONDS_PER_TOKEN`, `EXLLAMAV3_FAKE_LOAD_SECONDS`:
      seconds, default 0;
    - `EXLLAMAV3_FAKE_CRASH_EXITS`: with `1`, a `fault: crash` line ends the process with status 70 (the host sets
      it); otherwise it fails every request with `EngineDied`.
    """

    def __init__(
        self,
        settings: EngineSettings,
        *,
        renderer: ChatRenderer | None = None,
        seconds_per_prefill_page: float = 0.0,
        seconds_per_token: float = 0.0,
        crash_exits: bool = False,
    ) -> None:
        """`renderer`: of a real chat template. None: the fake's own."""
        model = settings.model
        context_length = model.max_seq_len or _DEFAULT_CONTEXT_LENGTH
        self._renderer = renderer or template.OwnRenderer(FormatOptions.of(model))
        num_pages = -(-(model.cache_size or context_length) // PAGE_SIZE)
        self._info = EngineInfo(
            model_key=settings.model_key,
            engine="fake",
            context_length=context_length,
            page_size=PAGE_SIZE,
            cache_tokens=num_pages * PAGE_SIZE,
            cache_fingerprint=hashlib.blake2b(b"fake engine, template 1", digest_size=16).hexdigest(),
            max_batch_size=model.max_batch_size or _DEFAULT_MAX_BATCH_SIZE,
            tool_format=self._renderer.answer_format.tool_format,
            has_reasoning=self._renderer.answer_format.reasoning is not None,
            reads_images=model.vision,
            effective_settings={"chunk_size": f"fake: {model.chunk_size}"},
        )
        self._images = settings.images
        self._cache = PageCache(num_pages)
        memory = settings.memory
        self._shared = SharedPrefixes(memory) if memory.aging_lfu and memory.aging_capture_prefixes else None
        self._crash_exits = crash_exits
        self._unavailable: EngineUnavailable | None = None
        self._scheduler = Scheduler(
            self._cache,
            chunk_size=model.chunk_size,
            max_batch_size=model.max_batch_size or _DEFAULT_MAX_BATCH_SIZE,
            max_pinned_pages=int(num_pages * settings.memory.pin_max_fraction),
            pace=Pace(seconds_per_prefill_page=seconds_per_prefill_page, seconds_per_token=seconds_per_token),
            on_crash=self._crash,
        )

    @classmethod
    async def load(
        cls,
        settings: EngineSettings,
        report: Callable[[LoadProgress], None],
        *,
        seconds_per_prefill_page: float | None = None,
        seconds_per_token: float | None = None,
        load_seconds: float | None = None,
    ) -> Self:
        """As `contract.Loader.load`. What is None comes from the environment."""
        model_dir = settings.model.model_dir
        if model_dir != "demo" and not await asyncio.to_thread(Path(model_dir).is_dir):
            raise LoadFailed(f"model_dir: there is no folder {model_dir}; name a model's folder, or `demo`")
        seconds = _environment("LOAD_SECONDS") if load_seconds is None else load_seconds
        for done in range(_NUM_LOAD_STEPS):
            report(LoadProgress(stage="weights", done=done, total=_NUM_LOAD_STEPS))
            await asyncio.sleep(seconds / _NUM_LOAD_STEPS)
        report(LoadProgress(stage="weights", done=_NUM_LOAD_STEPS, total=_NUM_LOAD_STEPS))
        page, token = seconds_per_prefill_page, seconds_per_token
        return cls(
            settings,
            renderer=await asyncio.to_thread(_renderer, settings.model),
            seconds_per_prefill_page=_environment("SECONDS_PER_PREFILL_PAGE") if page is None else page,
            seconds_per_token=_environment("SECONDS_PER_TOKEN") if token is None else token,
            crash_exits=_environment("CRASH_EXITS") > 0,
        )

    @property
    def info(self) -> EngineInfo:
        return self._info

    async def render(self, chat: Chat) -> Prompt:
        self._check_available()
        images = await prepare_images(chat, self._images) if self._info.reads_images else None
        return self._renderer.render(chat, images)

    async def render_head(self, head: Head) -> Prompt:
        self._check_available()
        return self._renderer.render_head(head)

    async def tokenize(self, text: str) -> Prompt:
        self._check_available()
        return Prompt(token_ids=template.encode(text))

    def generate(self, prompt: Prompt, params: GenerationParams, *, retain: bool = True) -> EventStream:
        """The fake keeps nothing past its process; without `retain` it captures nothing of the prompt either."""
        if params.chat is None:
            return self._generate(prompt, params, retain=retain)
        form, opened = self._renderer.answer_format, prompt.opens_reasoning
        try:
            parser = form.parser(params.chat, opens_reasoning=opened)
            prepared = form.prepared(params, opens_reasoning=opened, special_tokens={})
        except InvalidRequest as error:
            return failed_stream(error)
        return ParsedStream(self._generate(prompt, prepared, retain=retain), parser)

    def _generate(self, prompt: Prompt, params: GenerationParams, *, retain: bool) -> QueuedEventStream:
        stream = self._new_stream()
        try:
            self._check_available()
            text = template.decode(prompt.token_ids)
            self._check_length(prompt, num_answer_tokens=1)
            check_token_ids(params, template.VOCABULARY_SIZE)
            planned = answer(
                text,
                params,
                room=self._most - len(prompt.token_ids),
                reasoning=self._renderer.answer_format.reasoning,
                opens_reasoning=prompt.opens_reasoning,
            )
        except EngineError as error:
            stream.fail(error)
            return stream
        token_ids = bytes(prompt.token_ids)
        if retain and self._shared is not None:
            self._shared.claim(prompt.token_ids[: prompt.num_lasting_tokens])
        self._scheduler.submit(
            Job(token_ids=token_ids, stream=stream, answer=planned, top_logprobs=params.top_logprobs)
        )
        return stream

    def prefill(self, prompt: Prompt, *, pin: bool = False) -> QueuedEventStream:
        stream = self._new_stream()
        try:
            self._check_available()
            template.decode(prompt.token_ids)
            self._check_length(prompt, num_answer_tokens=0)
        except EngineError as error:
            stream.fail(error)
            return stream
        self._scheduler.submit(Job(token_ids=bytes(prompt.token_ids), stream=stream, pin=pin))
        return stream

    async def unpin(self, prompt: Prompt) -> None:
        self._check_available()
        self._cache.unpin(bytes(prompt.token_ids))

    async def stored_prefixes(self, written_after: float = 0.0) -> tuple[StoredPrefix, ...]:
        self._check_available()
        return self._shared.stored(written_after, self._info.cache_fingerprint) if self._shared is not None else ()

    async def forget(self, prompt: Prompt) -> int:
        self._check_available()
        if self._shared is not None:
            self._shared.forget(prompt.token_ids)
        return self._cache.forget(bytes(prompt.token_ids))

    async def stats(self) -> EngineStats:
        self._check_available()
        return self._scheduler.stats()

    async def close(self) -> None:
        if self._unavailable is None:
            self._unavailable = EngineUnavailable("the engine was closed")
        await self._scheduler.stop(self._unavailable)

    def _new_stream(self) -> QueuedEventStream:
        return QueuedEventStream(on_cancel=lambda: self._scheduler.reap())

    @property
    def _most(self) -> int:
        """Tokens that prompt and answer may have together; an answer that wants more ends there."""
        return min(self._info.context_length, self._info.cache_tokens)

    def _check_length(self, prompt: Prompt, num_answer_tokens: int) -> None:
        num_tokens = len(prompt.token_ids)
        if num_tokens == 0:
            raise InvalidRequest("the prompt is empty; send at least one token", "messages")
        if num_tokens + num_answer_tokens > self._most:
            raise ContextLengthExceeded(
                f"the prompt has {num_tokens} tokens and the model's context, which holds prompt and answer, "
                f"{self._most}; shorten the messages",
                "messages",
                prompt_tokens=num_tokens,
                max_tokens=self._most,
            )

    def _check_available(self) -> None:
        if self._unavailable is not None:
            raise type(self._unavailable)(self._unavailable.message)

    def _crash(self) -> None:
        if self._crash_exits:
            _exit()
        self._unavailable = EngineDied("the fake engine crashed, as a request's `fault: crash` line asked")
        self._scheduler.fail_all(self._unavailable)


def _renderer(options: ModelOptions) -> ChatRenderer | None:
    """Blocks while it tries the template out. Raises `LoadFailed`."""
    if options.chat_template is None:
        return None
    found = find_chat_template(Path(options.model_dir), options.chat_template)
    return ChatRenderer(
        found, template.SPECIAL_TOKENS, lambda text: list(text.encode()), format_options=FormatOptions.of(options)
    )


def _environment(name: str) -> float:
    return float(os.environ.get(_ENVIRONMENT_PREFIX + name, "0"))


def _exit() -> NoReturn:
    os._exit(_CRASH_EXIT_STATUS)
