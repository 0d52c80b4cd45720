"""The contract over exllamav3's scheduler: what the `cpu` and the `cuda` engine have in common."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from exllamav3_adapters.answer_format.parsed_stream import ParsedStream
from exllamav3_adapters.chat_renderer import ChatRenderer
from exllamav3_adapters.contract import (
    Chat,
    EngineInfo,
    EngineStats,
    EventStream,
    GenerationParams,
    Head,
    Prompt,
    StoredPrefix,
)
from exllamav3_adapters.engine_settings import EngineSettings
from exllamav3_adapters.errors import ContextLengthExceeded, EngineDied, EngineError, EngineUnavailable, InvalidRequest
from exllamav3_adapters.event_stream import QueuedEventStream, failed_stream
from exllamav3_adapters.exl3.aging_policy import AgingPolicy
from exllamav3_adapters.exl3.answer_filters import AnswerFilters
from exllamav3_adapters.exl3.answer_tokenizer import AnswerTokenizer
from exllamav3_adapters.exl3.checkpoint_eviction import CheckpointEviction
from exllamav3_adapters.exl3.fingerprint import cache_fingerprint
from exllamav3_adapters.exl3.generator_options import (
    aging_is_ours,
    effective_settings,
    frontiers_are_ours,
    gds_is_ours,
    generator_options,
    options_without_effect,
)
from exllamav3_adapters.exl3.image_cache import placeholders
from exllamav3_adapters.exl3.prefill_times import device_clock
from exllamav3_adapters.exl3.request import Request
from exllamav3_adapters.exl3.results import failure_of
from exllamav3_adapters.exl3.sampling import build_sampler, scans_vocabulary
from exllamav3_adapters.exl3.scheduler import Scheduler
from exllamav3_adapters.exl3.tiers import check_tiers
from exllamav3_adapters.exl3.vision import Vision
from exllamav3_adapters.policies.prefill_cost import PrefillCost
from exllamav3_adapters.text_start import text_start
from exllamav3_adapters.token_ids import check_token_ids

T = TypeVar("T")
log = logging.getLogger(__name__)

RENDER_SECONDS = 60.0
"""For one chat to be rendered, those before it on the thread included. Nothing can end a template's endless loop but
the end of its process."""


@dataclass(frozen=True, kw_only=True)
class LoadedModel:
    """What an engine brings: exllamav3's objects (or their like), loaded, and the renderer of its chats."""

    model: Any
    cache: Any
    tokenizer: Any
    """The generator's own. Rendering uses another, since exllamav3's tokenizer keeps state between calls."""
    renderer: ChatRenderer
    context_length: int
    draft: Mapping[str, Any] = field(default_factory=dict)
    """Draft model and its cache as arguments of the generator, empty where drafts need none."""
    vision: Any = None
    """The model's vision component, loaded. None: the model reads text only."""
    effective_settings: Mapping[str, str] = field(default_factory=dict)
    """Option -> who carries it out and with which value, of what is no business of the generator's."""
    release: Callable[[], None] = lambda: None
    """Frees what all this holds. Blocks; called once the generator has ended, from any thread."""


class Exl3Engine:
    """A `contract.Engine`. Its scheduler has a thread of its own, and so has the renderer with its tokenizer."""

    def __init__(
        self, engine: str, settings: EngineSettings, loaded: LoadedModel, *, render_seconds: float = RENDER_SECONDS
    ) -> None:
        """Blocks while the generator is made: call from a worker thread. Raises LoadFailed."""
        from exllamav3 import Generator
        from exllamav3.constants import PAGE_SIZE

        is_hybrid = bool(loaded.model.caps.get("recurrent_states"))
        _warn_of_idle_options(settings, is_hybrid)
        options = generator_options(settings, Generator, is_hybrid=is_hybrid)
        self._renderer = loaded.renderer
        self._release = loaded.release
        form = loaded.renderer.answer_format
        self._tokenizer = AnswerTokenizer(loaded.tokenizer, form.tags)
        self._filters = AnswerFilters(self._tokenizer, form.reasoning, self._tokenizer.get_id_to_piece_list(True))
        self._render_thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="exllamav3-render")
        # Apart from rendering: a client's grammar can take seconds to compile, and no other request waits for it.
        self._prepare_thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="exllamav3-prepare")
        self._render_seconds = render_seconds
        self._vocab_size = int(loaded.model.config.vocab_size)
        self._closed = False
        self._ended: Future[EngineDied | None] = Future()
        self._info = EngineInfo(
            model_key=settings.model_key,
            engine=engine,
            context_length=loaded.context_length,
            page_size=PAGE_SIZE,
            cache_tokens=loaded.cache.max_num_tokens,
            cache_fingerprint=cache_fingerprint(loaded),
            tool_format=form.tool_format,
            has_reasoning=form.reasoning is not None,
            reads_images=loaded.vision is not None,
            text_start=text_start(
                loaded.tokenizer.tokenizer, loaded.tokenizer.tokenizer_config_dict, loaded.tokenizer.bos_token_id
            ),
            effective_settings={
                **loaded.effective_settings,
                **effective_settings(settings, Generator, is_hybrid=is_hybrid),
            },
        )
        check_tiers(settings.memory, loaded.cache)
        self._scheduler = Scheduler(
            lambda: Generator(
                model=loaded.model, cache=loaded.cache, tokenizer=self._tokenizer, **options, **loaded.draft
            ),
            stop_token_ids=list(loaded.model.config.eos_token_id_list),
            # Without it a request that names no max_tokens would reserve the whole cache and run alone.
            max_rq_tokens=settings.model.chunk_size,
            pin_max_fraction=settings.memory.pin_max_fraction,
            make_aging=self._make_aging(settings) if aging_is_ours(settings, Generator) else None,
            keeps_frontiers=frontiers_are_ours(settings, Generator),
            eviction=_make_eviction(settings, loaded.model) if gds_is_ours(settings, Generator) else None,
            on_answered=self._keep_tokens,
            on_broken=self._ended.set_result,
        )
        self._vision: Vision | None = None
        if loaded.vision is not None:
            self._vision = Vision(loaded.vision, loaded.tokenizer, settings.images, self._scheduler.compute)
        self._scheduler.start()
        self._info = replace(self._info, max_batch_size=self._scheduler.max_batch_size)

    @property
    def info(self) -> EngineInfo:
        return self._info

    async def died(self) -> EngineDied | None:
        """As `contract.Mortal`. A device that failed stays broken until this process has ended."""
        return await asyncio.shield(asyncio.wrap_future(self._ended))

    async def render(self, chat: Chat) -> Prompt:
        self._check_open()
        images = await self._vision.prepare(chat) if self._vision is not None else None
        return await self._on_render_thread(lambda: self._renderer.render(chat, images))

    async def render_head(self, head: Head) -> Prompt:
        return await self._on_render_thread(lambda: self._renderer.render_head(head))

    async def tokenize(self, text: str) -> Prompt:
        return await self._on_render_thread(lambda: self._renderer.tokenize(text))

    def generate(self, prompt: Prompt, params: GenerationParams, *, retain: bool = True) -> EventStream:
        if params.chat is None:
            return self._generate(prompt, params, retain=retain)
        form, opened = self._renderer.answer_format, prompt.opens_reasoning
        try:
            parser = form.parser(params.chat, opens_reasoning=opened)
            prepared = form.prepared(params, opens_reasoning=opened, special_tokens=self._tokenizer.special_tokens)
        except InvalidRequest as error:
            return failed_stream(error)
        return ParsedStream(self._generate(prompt, prepared, retain=retain), parser)

    def prefill(self, prompt: Prompt, *, pin: bool = False) -> QueuedEventStream:
        request = self._request(prompt, GenerationParams(max_tokens=1, temperature=0.0), background=True, pin=pin)
        if not request.stream.complete:
            self._scheduler.submit(request)
        return request.stream

    async def unpin(self, prompt: Prompt) -> None:
        await self._scheduler.unpin(prompt.token_ids)

    async def stored_prefixes(self, written_after: float = 0.0) -> tuple[StoredPrefix, ...]:
        return await self._scheduler.stored_prefixes(written_after)

    async def forget(self, prompt: Prompt) -> int:
        await self._on_render_thread(lambda: self._renderer.conversations.forget(prompt.token_ids))
        return await self._scheduler.forget(prompt.token_ids)

    async def stats(self) -> EngineStats:
        return await self._scheduler.stats()

    async def close(self) -> None:
        self._closed = True
        for thread in (self._render_thread, self._prepare_thread):
            thread.shutdown(wait=False, cancel_futures=True)
        if self._vision is not None:
            self._vision.close()
        await self._scheduler.close()
        if not self._ended.done():
            self._ended.set_result(None)
        release, self._release = self._release, lambda: None
        await asyncio.to_thread(release)

    def _generate(self, prompt: Prompt, params: GenerationParams, *, retain: bool) -> QueuedEventStream:
        request = self._request(prompt, params, retain=retain)
        if request.stream.complete:
            return request.stream
        if not self._filters.are_needed(params) and not scans_vocabulary(params):
            self._scheduler.submit(request)
        else:
            self._prepare_thread.submit(self._prepare_and_submit, request)
        return request.stream

    def _make_aging(self, settings: EngineSettings) -> Callable[[Any], AgingPolicy]:
        fingerprint = self._info.cache_fingerprint
        return lambda generator: AgingPolicy(generator, settings, cache_fingerprint=fingerprint)

    def _request(
        self,
        prompt: Prompt,
        params: GenerationParams,
        *,
        retain: bool = True,
        background: bool = False,
        pin: bool = False,
    ) -> Request:
        """A request whose stream has failed already where it cannot be served."""
        stream = QueuedEventStream(on_cancel=lambda: self._scheduler.cancel(request))
        room = self._info.context_length - len(prompt.token_ids)
        request = Request(
            prompt=prompt,
            params=params,
            stream=stream,
            loop=asyncio.get_running_loop(),
            max_new_tokens=min(params.max_tokens or room, room),
            retain=retain,
            background=background,
            pin=pin,
        )
        try:
            self._check_open()
            if prompt.images and self._vision is not None:
                request.images = self._vision.images_of(prompt)
            self._check_servable(request)
        except EngineError as error:
            stream.fail(error)
        return request

    def _check_servable(self, request: Request) -> None:
        """A token outside the vocabulary, and no placeholder of the prompt's images, would fail the forward of the
        whole batch."""
        prompt, of_images = request.prompt, placeholders(request.images)
        if not prompt.token_ids:
            raise InvalidRequest("the prompt is empty", "messages")
        is_plain = min(prompt.token_ids) >= 0 and max(prompt.token_ids) < self._vocab_size
        if not is_plain and any(
            not 0 <= token_id < self._vocab_size and token_id not in of_images for token_id in prompt.token_ids
        ):
            raise InvalidRequest(f"token ids must be from 0 to {self._vocab_size - 1}", "prompt")
        check_token_ids(request.params, self._vocab_size)
        if len(prompt.token_ids) >= self._info.context_length:
            raise ContextLengthExceeded(
                f"the prompt has {len(prompt.token_ids)} tokens, and this model's context of "
                f"{self._info.context_length} tokens must hold it and the answer; shorten the messages",
                "messages",
                prompt_tokens=len(prompt.token_ids),
                max_tokens=self._info.context_length,
            )

    def _prepare_and_submit(self, request: Request) -> None:
        """What takes long enough to hold up a batch."""
        if request.stream.complete:
            return  # its reader has left while others were prepared
        try:
            request.filters = self._filters.build(request.params, opens_reasoning=request.prompt.opens_reasoning)
            request.sampler = build_sampler(request.params, self._tokenizer)
        except Exception as error:
            request.loop.call_soon_threadsafe(request.stream.fail, failure_of(error))
        else:
            self._scheduler.submit(request)

    def _keep_tokens(self, request: Request, broken: bool) -> None:
        """On the scheduler's thread. Nothing that is rendered once the reader has the end can come before it."""
        with contextlib.suppress(RuntimeError):  # the engine is closed
            self._render_thread.submit(self._remember, request, broken)

    def _remember(self, request: Request, broken: bool) -> None:
        conversations = self._renderer.conversations
        try:
            if request.retain:
                conversations.remember(request.prompt.token_ids, request.sent.pieces, broken=broken)
            else:
                conversations.discard(request.prompt.token_ids)
        except Exception:
            log.exception("the tokens of an answer are not remembered")

    def _check_open(self) -> None:
        if self._closed:
            raise EngineUnavailable("the engine is closed")

    async def _on_render_thread(self, function: Callable[[], T]) -> T:
        self._check_open()
        call = asyncio.get_running_loop().run_in_executor(self._render_thread, function)
        try:
            # Shielded: a call that has begun on the thread cannot be cancelled, and its result is nobody's then.
            return await asyncio.wait_for(asyncio.shield(call), self._render_seconds)
        except TimeoutError:
            raise EngineDied(
                f"the thread that renders chats has not answered for {self._render_seconds:g} s; a chat template "
                "without end, most likely"
            ) from None


def _make_eviction(settings: EngineSettings, model: Any) -> CheckpointEviction:
    coefficients = settings.model.prefill_cost_coefficients
    cost = None if coefficients is None else PrefillCost(*coefficients)
    return CheckpointEviction(cost, device_clock(model.output_device))


def _warn_of_idle_options(settings: EngineSettings, is_hybrid: bool) -> None:
    """The plugin's settings say what `sysmem_kv_cache: 0` means for frontiers: that needs no model to be known."""
    names = options_without_effect(settings)
    if names and not is_hybrid:
        log.warning("%s has no recurrent layers: %s has no effect", settings.model_key, ", ".join(names))
