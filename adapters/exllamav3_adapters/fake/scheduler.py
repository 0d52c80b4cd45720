"""The fake engine's rounds: admit, prefill a chunk or decode a token for each request, reap.

All of it runs on one loop. Between rounds the loop is free, and a request that was cancelled leaves there.
"""

from __future__ import annotations

import asyncio
import codecs
import logging
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field

from exllamav3_adapters.contract import (
    EngineStats,
    Finished,
    Prefilled,
    PrefillProgress,
    Started,
    Text,
    TokenLogprob,
)
from exllamav3_adapters.errors import ContextLengthExceeded, EngineDied, EngineError, JobFailed
from exllamav3_adapters.event_stream import QueuedEventStream
from exllamav3_adapters.fake.answer import Answer
from exllamav3_adapters.fake.pages import PAGE_SIZE, Lease, PageCache, num_pages_for

logger = logging.getLogger(__name__)

_LOGPROB = -0.125


@dataclass(frozen=True, kw_only=True, slots=True)
class Pace:
    """How long the pretended work takes."""

    seconds_per_prefill_page: float = 0.0
    seconds_per_token: float = 0.0


@dataclass(eq=False, kw_only=True, slots=True)
class Job:
    """One request. `done` counts the prompt's tokens that are in the cache."""

    token_ids: bytes
    stream: QueuedEventStream
    answer: Answer | None = None
    """None: a prefill."""
    top_logprobs: int | None = None
    pin: bool = False
    lease: Lease | None = None
    started: bool = False
    done: int = 0
    cached_tokens: int = 0
    num_sampled: int = 0
    decoder: codecs.IncrementalDecoder = field(
        default_factory=lambda: codecs.getincrementaldecoder("utf-8")(errors="replace")
    )

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids) + (len(self.answer.tokens) if self.answer else 0)


class Scheduler:
    """Runs jobs from the first `submit` until `stop`.

    `chunk_size` is in tokens; `on_crash` is called when a job's fault is to take all down.
    """

    def __init__(
        self,
        cache: PageCache,
        *,
        chunk_size: int,
        max_batch_size: int,
        max_pinned_pages: int,
        pace: Pace,
        on_crash: Callable[[], None],
    ) -> None:
        self._cache = cache
        self._chunk_size = chunk_size
        self._max_batch_size = max_batch_size
        self._max_pinned_pages = max_pinned_pages
        self._pace = pace
        self._on_crash = on_crash
        self._queue: deque[Job] = deque()
        self._active: list[Job] = []
        self._background: deque[Job] = deque()
        self._counters: Counter[str] = Counter()
        self._work = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def submit(self, job: Job) -> None:
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="fake engine")
            self._task.add_done_callback(self._ended)
        (self._queue if job.answer else self._background).append(job)
        self._work.set()

    def reap(self) -> None:
        """To be called when a stream was left: work that waits forgets the job at once, a round at its end."""
        self._queue = deque(job for job in self._queue if not job.stream.complete)
        self._work.set()

    async def stop(self, error: EngineError) -> None:
        """Ends the rounds; every job fails with `error` and its pages are free."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        self.fail_all(error)

    def fail_all(self, error: EngineError) -> None:
        for job in [*self._queue, *self._active, *self._background]:
            job.stream.fail(error)
            self._release(job)
        self._queue.clear()
        self._active.clear()
        self._background.clear()

    def _ended(self, task: asyncio.Task[None]) -> None:
        """A bug in a round must fail the requests, not leave them waiting."""
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("the fake engine's rounds ended", exc_info=error)
            self.fail_all(EngineDied(f"the fake engine's rounds ended: {type(error).__name__}"))

    def stats(self) -> EngineStats:
        counters = {name: float(count) for name, count in self._counters.items()}
        return EngineStats(
            active_requests=len(self._active),
            queued_requests=len(self._queue),
            cache_tokens_used=self._cache.num_used * PAGE_SIZE,
            cache_tokens_reusable=self._cache.num_reusable * PAGE_SIZE,
            cache_tokens_pinned=self._cache.num_pinned * PAGE_SIZE,
            counters=counters | {"evictions": float(self._cache.num_evictions)},
        )

    async def _run(self) -> None:
        while True:
            self._admit()
            if self._active:
                await self._round()
            elif self._background:
                await self._background_step(self._background[0])
            else:
                self._work.clear()
                await self._work.wait()

    def _admit(self) -> None:
        while self._queue and len(self._active) < self._max_batch_size:
            job = self._queue[0]
            if not self._hold(job):
                if self._active:
                    return
                job.stream.fail(_too_large(job, self._cache))
            else:
                self._active.append(job)
            self._queue.popleft()

    async def _round(self) -> None:
        seconds = max([self._advance(job) for job in list(self._active)], default=0.0)
        await asyncio.sleep(seconds)
        for job in [job for job in self._active if job.stream.complete]:
            self._active.remove(job)
            self._release(job)

    def _advance(self, job: Job) -> float:
        """One step of a request; the seconds that it takes."""
        assert job.answer is not None
        if job.stream.complete:
            return 0.0
        if job.done < len(job.token_ids):
            return self._prefill_chunk(job)
        if job.answer.fault == "crash":
            self._on_crash()
        elif job.answer.fault == "job":
            job.stream.fail(JobFailed("the sampler of this request failed, as its `fault: job` line asked"))
        else:
            self._decode(job, job.answer)
        return self._pace.seconds_per_token

    async def _background_step(self, job: Job) -> None:
        """One chunk of a prefill. It keeps its pages to itself only while no request wants the engine."""
        if not job.stream.complete and job.lease is None and not self._hold(job):
            job.stream.fail(_too_large(job, self._cache))
        if not job.stream.complete:
            await asyncio.sleep(self._prefill_chunk(job))
        if job.done == len(job.token_ids) and not job.stream.complete:
            self._finish_prefill(job)
        if job.stream.complete:
            self._background.remove(job)
        if job.stream.complete or self._queue:
            self._release(job)

    def _hold(self, job: Job) -> bool:
        job.lease = self._cache.reserve(job.token_ids, job.num_tokens)
        if job.lease is None:
            return False
        job.done = job.lease.num_cached * PAGE_SIZE
        if not job.started:
            job.started = True
            job.cached_tokens = job.done
            if job.answer:
                self._counters["requests"] += 1
                self._counters["prompt_tokens"] += len(job.token_ids)
                self._counters["cached_tokens"] += job.cached_tokens
            job.stream.feed(Started())
        return True

    def _release(self, job: Job) -> None:
        if job.lease is not None:
            self._cache.release(job.lease)
            job.lease = None

    def _prefill_chunk(self, job: Job) -> float:
        assert job.lease is not None
        end = min(job.done + self._chunk_size, len(job.token_ids))
        seconds = self._pace.seconds_per_prefill_page * num_pages_for(end - job.done)
        job.done = end
        self._cache.publish(job.lease, job.token_ids[:end])
        job.stream.feed(PrefillProgress(done_tokens=end, total_tokens=len(job.token_ids)))
        return seconds

    def _finish_prefill(self, job: Job) -> None:
        num_pinned = self._cache.pin(job.token_ids, self._max_pinned_pages) if job.pin else 0
        job.stream.feed(
            Prefilled(
                prompt_tokens=len(job.token_ids),
                cached_tokens=job.cached_tokens,
                pinned_tokens=num_pinned * PAGE_SIZE,
            )
        )

    def _decode(self, job: Job, answer: Answer) -> None:
        if job.num_sampled < len(answer.tokens):
            job.num_sampled += 1
            self._counters["completion_tokens"] += 1
            self._feed_token(job, answer)
        if job.num_sampled == len(answer.tokens):
            assert job.lease is not None
            self._cache.publish(job.lease, job.token_ids + answer.tokens)
            job.stream.feed(
                Finished(
                    reason=answer.reason,
                    prompt_tokens=len(job.token_ids),
                    cached_tokens=job.cached_tokens,
                    completion_tokens=job.num_sampled,
                )
            )

    def _feed_token(self, job: Job, answer: Answer) -> None:
        if job.num_sampled > answer.num_visible:
            return
        token = answer.tokens[job.num_sampled - 1 : job.num_sampled]
        text = job.decoder.decode(token, final=job.num_sampled == answer.num_visible)
        if text:
            logprobs = () if job.top_logprobs is None else _logprobs(text, job.top_logprobs)
            job.stream.feed(Text(text=text, logprobs=logprobs))


def _logprobs(text: str, num_top: int) -> tuple[TokenLogprob, ...]:
    likeliest = [text, *(letter for letter in "etaoinshrdlucmfwypvbgkjqxz" if letter != text)][:num_top]
    top = tuple((token, _LOGPROB - rank) for rank, token in enumerate(likeliest))
    return (TokenLogprob(token=text, logprob=_LOGPROB, top=top),)


def _too_large(job: Job, cache: PageCache) -> ContextLengthExceeded:
    free = (cache.capacity - cache.num_pinned) * PAGE_SIZE
    return ContextLengthExceeded(
        f"{job.num_tokens} tokens do not fit beside the {cache.num_pinned * PAGE_SIZE} that are pinned in the cache; "
        "shorten the request or unpin a prefix",
        prompt_tokens=len(job.token_ids),
        max_tokens=free,
    )
