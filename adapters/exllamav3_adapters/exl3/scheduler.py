"""The thread that drives exllamav3's synchronous generator."""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import traceback
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from exllamav3.constants import PAGE_SIZE
from exllamav3.generator.job import NonFiniteLogits

from exllamav3_adapters.contract import EngineStats, Prefilled, StoredPrefix
from exllamav3_adapters.errors import EngineDied, EngineError, EngineUnavailable
from exllamav3_adapters.exl3.aging_policy import AgingPolicy
from exllamav3_adapters.exl3.checkpoint_cache import CheckpointCache
from exllamav3_adapters.exl3.checkpoint_eviction import CheckpointEviction
from exllamav3_adapters.exl3.checkpoint_install import install_checkpoints
from exllamav3_adapters.exl3.containment import Containment
from exllamav3_adapters.exl3.forgetting import Forgetting
from exllamav3_adapters.exl3.guarded_job import GuardedJob
from exllamav3_adapters.exl3.page_chain import as_tensor
from exllamav3_adapters.exl3.pins import PinnedPages
from exllamav3_adapters.exl3.request import Request
from exllamav3_adapters.exl3.results import events_of, released_text
from exllamav3_adapters.exl3.sampling import build_sampler

log = logging.getLogger(__name__)

T = TypeVar("T")
Delivery = tuple[Request, object]
IDLE_WORK_SECONDS = 0.05
"""Pause between steps of the generator's idle work (writing pages to disk)."""


class Scheduler:
    """Owns the generator and all that hangs on it. Public methods belong to the loop, the rest to its thread.

    Commands are taken between two steps, so a cancelled request has freed its pages at the next chunk boundary.
    Background prefills run one at a time and only while nothing else is queued or active: exllamav3 gives each
    prefilling job a full chunk a round, so one beside a request would double its wait. One that has to yield is
    cancelled, its finished pages stay in the cache, and it starts again from them.
    """

    def __init__(
        self,
        make_generator: Callable[[], Any],
        *,
        stop_token_ids: list[int],
        max_rq_tokens: int,
        pin_max_fraction: float,
        make_aging: Callable[[Any], AgingPolicy] | None = None,
        keeps_frontiers: bool = False,
        eviction: CheckpointEviction | None = None,
        on_answered: Callable[[Request, bool], None] = lambda request, broken: None,
        on_broken: Callable[[EngineDied], None] = lambda reason: None,
    ) -> None:
        """`make_aging` is given the generator; without it the stock order of eviction stays. `keeps_frontiers` and
        `eviction` are for hybrid models only: whether we keep checkpoints inside pages (`checkpoint_cache.py`), and in
        which order checkpoints go, None for the stock one. `on_answered` is told on the scheduler's thread of each
        request whose answer has ended, before its reader is, and with True of one that its reader has left.
        `on_broken` is told there of a fault that ends the engine, once all that wait have been told."""
        self._make_generator = make_generator
        self._stop_token_ids = stop_token_ids
        self._max_rq_tokens = max_rq_tokens
        self._pin_max_fraction = pin_max_fraction
        self._make_aging = make_aging
        self._keeps_frontiers = keeps_frontiers
        self._eviction = eviction
        self._on_answered = on_answered
        self._on_broken = on_broken
        self._commands: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._prefills: deque[Request] = deque()
        self._active: set[Request] = set()  # every request that has not ended, prefills included
        self._counters: dict[str, float] = dict.fromkeys(
            ("requests", "prompt_tokens", "cached_tokens", "completion_tokens", "prefill_yields", "failed_jobs"), 0
        )
        self._end_reason: EngineUnavailable | None = None
        self._ended = False
        self._ended_lock = threading.Lock()  # no command is queued after the thread has taken its last one
        self._ready = threading.Event()
        self._start_error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="exllamav3-scheduler", daemon=True)

    def start(self) -> None:
        """Makes the generator on the scheduler's thread and waits for it: call from a worker thread. Raises what
        making it raised."""
        self._thread.start()
        self._ready.wait()
        if self._start_error is not None:
            raise self._start_error

    @property
    def max_batch_size(self) -> int:
        """Sequences that the generator decodes together, once started."""
        return int(self._generator.max_batch_size)

    def submit(self, request: Request) -> None:
        """From any thread."""
        if not self._post(lambda: self._admit(request)):
            self._deliver([(request, self._ended_error())])

    def cancel(self, request: Request) -> None:
        self._post(lambda: self._release(request))

    async def call(self, function: Callable[[], T]) -> T:
        """Runs a function on the scheduler's thread, between two steps. Raises EngineUnavailable after the end."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def settle(setter: Callable[..., None], value: object) -> None:
            if not future.done():
                setter(value)

        def command() -> None:
            try:
                if self._end_reason is not None:
                    raise self._ended_error()
                loop.call_soon_threadsafe(settle, future.set_result, function())
            except Exception as error:
                loop.call_soon_threadsafe(settle, future.set_exception, error)
                self._containment.check(error)

        if not self._post(command):
            raise self._ended_error()
        return await future

    async def compute(self, function: Callable[[], T]) -> T:
        """As `call`, for work on the device beside the generator's. What fails there is told as a job's failure is."""

        def contained() -> T:
            try:
                return function()
            except Exception as error:
                raise self._containment.job_failure(error) from None

        return await self.call(contained)

    async def stats(self) -> EngineStats:
        return await self.call(self._stats)

    async def forget(self, token_ids: tuple[int, ...]) -> int:
        dropped = await self.call(lambda: self._forgetting.forget(token_ids))
        if self._aging is not None:
            await self._aging.settle()
        return dropped

    async def stored_prefixes(self, written_after: float) -> tuple[StoredPrefix, ...]:
        return await self.call(lambda: self._aging.captured(written_after) if self._aging is not None else ())

    async def unpin(self, token_ids: tuple[int, ...]) -> None:
        await self.call(lambda: self._unpin(token_ids))

    async def close(self) -> None:
        """Ends what runs, lets the generator write what is to be kept, and ends the thread."""
        self._post(None)
        await asyncio.to_thread(self._thread.join)

    def _post(self, command: Callable[[], None] | None) -> bool:
        """Queues a command for the thread; None means close. False: the thread has ended. From any thread."""
        with self._ended_lock:
            if self._ended:
                return False
            self._commands.put(command)
            return True

    # --- on the scheduler's thread -----------------------------------------------------------------------------

    def _ended_error(self) -> EngineUnavailable:
        """A new object each time: one that is raised in many tasks would gather all their tracebacks."""
        assert self._end_reason is not None, "nothing but the end of the thread refuses a command"
        return type(self._end_reason)(self._end_reason.message)

    def _run(self) -> None:
        try:
            self._generator = self._make_generator()
            tokenizer = self._generator.tokenizer
            self._names: list[str] = tokenizer.names
            self._chat_pieces: list[str] = tokenizer.get_id_to_piece_list(True)
            self._plain_pieces: list[str] = tokenizer.get_id_to_piece_list(False)
            self._checkpoints = self._install_checkpoints()
            self._aging = self._make_aging(self._generator) if self._make_aging is not None else None
            pagetable = self._generator.pagetable
            self._pins = PinnedPages(pagetable, int(pagetable.max_pages * self._pin_max_fraction))
            self._forgetting = Forgetting(self._generator, self._aging)
            self._containment = Containment(self._generator)
        except BaseException as error:
            self._start_error = error
            return
        finally:
            self._ready.set()
        try:
            while self._take_commands():
                self._step()
        except Exception as error:
            # Anything that escapes a step leaves the generator in a state that nobody knows.
            self._end_reason = self._containment.end_reason(error)
            places = "".join(traceback.format_tb(error.__traceback__))  # its text may quote a prompt
            log.error("%s; %s at\n%s", self._end_reason.message, type(error).__name__, places)
        else:
            self._end_reason = EngineUnavailable("the engine is closed")
        self._end()

    def _install_checkpoints(self) -> CheckpointCache | None:
        """None: the model has no recurrent layers."""
        if self._generator.recurrent_cache is None:
            return None
        return install_checkpoints(self._generator, keeps_frontiers=self._keeps_frontiers, eviction=self._eviction)

    def _take_commands(self) -> bool:
        """Runs what waits; blocks while there is nothing else to do. False: close."""
        while True:
            busy = self._generator.num_remaining_jobs() > 0 or bool(self._prefills)
            try:
                if busy:
                    command = self._commands.get_nowait()
                else:
                    command = self._commands.get(timeout=IDLE_WORK_SECONDS if self._generator.has_idle_work() else None)
            except queue.Empty:
                return True
            if command is None:
                return False
            command()

    def _step(self) -> None:
        generator = self._generator
        if not generator.num_remaining_jobs():
            if not self._prefills:
                generator.idle_work()
                return
            self._enqueue(self._prefills.popleft())
        deliveries: list[Delivery] = []
        try:
            for result in generator.iterate():
                self._take_result(result, deliveries)
        finally:
            self._deliver(deliveries)  # also of a step that ends the engine: an answer may have ended in it

    def _take_result(self, result: dict[str, Any], deliveries: list[Delivery]) -> None:
        result.setdefault("identifier", result["job"].identifier)
        request: Request = result["identifier"]
        if request not in self._active:  # cancelled meanwhile
            return
        if result["stage"] == "error":
            self._counters["failed_jobs"] += 1
            log.warning("a job failed: %s", type(result["error"]).__name__)
            deliveries.append((request, self._containment.job_failure(result["error"])))
            if isinstance(result["error"], NonFiniteLogits):
                self._forgetting.forget(request.prompt.token_ids)  # else whoever shares a page with it fails as well
        else:
            events = events_of(result, self._names, self._pieces(request))
            if request.pin and events and isinstance(events[-1], Prefilled):
                events[-1] = self._pin(request, events[-1])
            deliveries += [(request, event) for event in events]
            self._note_sent(request, result)
            if result["eos"]:
                self._count(request, result)
        if result["eos"]:
            self._active.discard(request)
            self._forgetting.sweep()

    def _note_sent(self, request: Request, result: dict[str, Any]) -> None:
        if request.background or result["stage"] != "streaming":
            return
        pieces = self._pieces(request)
        request.sent.add(result, released_text(result, pieces), pieces)
        if result["eos"]:
            self._on_answered(request, False)

    def _pieces(self, request: Request) -> list[str]:
        """What each token is as a part of the request's answer."""
        return self._plain_pieces if request.params.chat is None else self._chat_pieces

    def _pin(self, request: Request, done: Prefilled) -> Prefilled:
        token_ids = request.prompt.token_ids
        pinned_tokens = self._pins.pin(token_ids)
        if self._checkpoints is not None:
            self._checkpoints.pin(token_ids, pinned_tokens)
        return Prefilled(
            prompt_tokens=done.prompt_tokens, cached_tokens=done.cached_tokens, pinned_tokens=pinned_tokens
        )

    def _unpin(self, token_ids: tuple[int, ...]) -> None:
        self._pins.unpin(token_ids)
        if self._checkpoints is not None:
            self._checkpoints.unpin(token_ids)

    def _count(self, request: Request, result: dict[str, Any]) -> None:
        if request.background:
            return
        self._counters["requests"] += 1
        self._counters["prompt_tokens"] += len(request.prompt.token_ids)
        self._counters["cached_tokens"] += result["cached_tokens"]
        self._counters["completion_tokens"] += result["new_tokens"]
        if self._aging is not None and request.counts:
            self._aging.count_saved(result["cached_tokens"])

    def _admit(self, request: Request) -> None:
        if request.stream.complete:  # the reader has left already
            return
        if self._end_reason is not None:
            self._deliver([(request, self._ended_error())])
            return
        self._active.add(request)
        if request.background:
            self._prefills.append(request)
            return
        self._enqueue(request)
        self._yield_prefill()

    def _enqueue(self, request: Request) -> None:
        params = request.params
        try:
            job = GuardedJob(
                as_tensor(request.prompt.token_ids),
                max_new_tokens=request.max_new_tokens,
                # A grammar may end before: `GrammarFilter` knows when.
                min_new_tokens=min(params.min_tokens, request.max_new_tokens) if params.grammar is None else 0,
                decode_special_tokens=params.chat is not None,
                sampler=request.sampler or build_sampler(params, self._generator.tokenizer),
                seed=params.seed,
                stop_conditions=[*([] if params.ignore_eos else self._stop_token_ids), *params.stop],
                banned_strings=list(params.banned_strings) or None,
                return_probs=params.top_logprobs is not None,
                return_top_tokens=params.top_logprobs or 0,
                filters=request.filters,
                embeddings=[image.embedding for image in request.images] or None,
                identifier=request,
                max_rq_tokens=self._max_rq_tokens,
            )
            job.pins = self._pins
            self._generator.enqueue(job)
        except Exception as error:
            failure = self._containment.job_failure(error)
            self._active.discard(request)
            self._deliver([(request, failure)])
            return
        request.job = job

    def _yield_prefill(self) -> None:
        """A request has arrived: the background prefill leaves, its finished pages stay, and its recurrent state."""
        for request in [request for request in self._active if request.background and request.job is not None]:
            computed = request.job.sequences[0].kv_position - self._cached_tokens(request.job)
            request.computed_tokens += max(0, computed)
            request.job.keep_progress()
            self._generator.cancel(request.job)
            request.job = None
            self._prefills.appendleft(request)
            self._counters["prefill_yields"] += 1

    @staticmethod
    def _cached_tokens(job: Any) -> int:
        page_size = job.sequences[0].allocated_pages[0].sequence.shape[-1] if job.sequences[0].allocated_pages else 0
        return int(job.cached_pages * page_size + job.cached_tokens)

    def _release(self, request: Request) -> None:
        if request not in self._active:
            return
        self._active.discard(request)
        if request in self._prefills:
            self._prefills.remove(request)
        if request.job is not None:
            request.job.keep_progress()
            self._generator.cancel(request.job)
        if not request.background:
            self._on_answered(request, True)
        self._forgetting.sweep()

    def _deliver(self, deliveries: list[Delivery]) -> None:
        """One wake-up of the loop a step, however many events."""
        by_loop: dict[asyncio.AbstractEventLoop, list[Delivery]] = {}
        for delivery in deliveries:
            by_loop.setdefault(delivery[0].loop, []).append(delivery)
        for loop, batch in by_loop.items():
            try:
                loop.call_soon_threadsafe(_feed, batch)
            except RuntimeError:  # the loop is closed: nobody reads any more
                for request, _ in batch:
                    self._release(request)

    def _stats(self) -> EngineStats:
        stats = self._generator.get_cache_stats()
        queued = sum(not request.background for request in self._active if not request.started)
        evictions = self._generator.pagetable.metrics
        return EngineStats(
            active_requests=sum(request.started and not request.background for request in self._active),
            queued_requests=queued,
            cache_tokens_used=stats["used_tokens"],
            cache_tokens_reusable=stats["cached_tokens"],
            cache_tokens_pinned=self._pins.pinned_pages() * PAGE_SIZE,
            sysmem_tokens=stats["tier_cached_tokens"],
            disk_tokens=stats["disk_cached_tokens"],
            counters={
                **self._counters,
                "evictions": evictions["evictions_live"],
                "sysmem_pages_restored": evictions["alloc_tier_pages"],
                "disk_pages_restored": evictions["alloc_disk_pages"],
                "pinned_pages": self._pins.pinned_pages(),
                **(self._aging.counters() if self._aging is not None else {}),
                **(self._checkpoints.counters() if self._checkpoints is not None else {}),
            },
        )

    def _end(self) -> None:
        self._deliver([(request, self._ended_error()) for request in self._active])
        self._active.clear()
        self._prefills.clear()
        if isinstance(self._end_reason, EngineDied):
            self._on_broken(self._end_reason)
        generator = self._generator
        try:
            if isinstance(self._end_reason, EngineDied):
                if generator.disk_page_cache is not None:
                    generator.disk_page_cache.abort()  # pages of a broken generator are not to be trusted
            else:
                generator.clear_queue()
            generator.close()
        except Exception:
            log.exception("closing the generator failed")
        if self._aging is not None:
            self._aging.close()
        with self._ended_lock:
            self._ended = True
        while not self._commands.empty():  # what came too late still gets its answer
            command = self._commands.get_nowait()
            if command is not None:
                command()


def _feed(batch: list[Delivery]) -> None:
    """On the loop."""
    for request, event in batch:
        if isinstance(event, EngineError):
            request.stream.fail(event)
        else:
            request.stream.feed(event)  # type: ignore[arg-type]
