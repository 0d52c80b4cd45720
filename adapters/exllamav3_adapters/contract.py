"""What the plugin and the engines agree on. Both sides point here; stdlib only.

An engine is found by name in `registry.py`. Every call is made on the event loop that loaded the engine and none
of them blocks it. All values are frozen and plain, since most engines live in another process (`host.py`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias, runtime_checkable

from exllamav3_adapters.engine_settings import EngineSettings
from exllamav3_adapters.errors import EngineDied

Message: TypeAlias = Mapping[str, Any]
"""One chat message in the OpenAI form. An image is a content part `{"type": "image", "data": ...}` of a user's message
or a tool's result, with the bytes of its file."""
Tool: TypeAlias = Mapping[str, Any]
"""One tool definition in the OpenAI form: `{"type": "function", "function": {...}}`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Head:
    """The part of a chat that other chats share: its leading system or developer messages, and its tools."""

    messages: Sequence[Message] = ()
    tools: Sequence[Tool] = ()
    template_variables: Mapping[str, Any] = field(default_factory=dict)
    """Those of the chats that share it: a template may write some of them first, such as `reasoning_effort`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Chat:
    """A chat to be rendered by the model's template, ready for the assistant's turn."""

    messages: Sequence[Message]
    tools: Sequence[Tool] = ()
    template_variables: Mapping[str, Any] = field(default_factory=dict)
    """Extra variables for the template, such as `enable_thinking`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PromptImage:
    """An image in a prompt. Its tokens are placeholders, which mean nothing to another process."""

    digest: str
    """Names what the engine has prepared of it."""
    start: int
    """Index of the first placeholder."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Prompt:
    """What the model reads."""

    token_ids: tuple[int, ...]
    num_head_tokens: int = 0
    """How many of the leading tokens belong to the head; 0 where that is not known."""
    opens_reasoning: bool = False
    """It ends inside a block of reasoning, which the template has opened for the answer."""
    images: tuple[PromptImage, ...] = ()
    """In the order in which they stand in it. Where one stands twice, each place is one."""

    @property
    def num_lasting_tokens(self) -> int:
        """How many of the leading tokens mean the same in another process: those before the first image."""
        return self.images[0].start if self.images else len(self.token_ids)


@dataclass(frozen=True, kw_only=True, slots=True)
class Grammar:
    """What the output must match (LLGuidance)."""

    kind: Literal["json_schema", "regex", "lark"]
    source: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolUse:
    """Which tools an answer may call."""

    tools: Sequence[Tool]
    choice: Literal["none", "auto", "required"] = "auto"
    """`none` and `required` are kept whatever the model would rather do; `required` also keeps the arguments to the
    tools' schemas."""
    function: str | None = None
    """With `required`: the tool that must be called. None: any of them."""
    parallel: bool = True
    """False: at most one call."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ChatAnswer:
    """How the answer to a rendered chat is taken apart: its reasoning and its tool calls leave its text."""

    tool_use: ToolUse | None = None
    """None: the chat has no tools, and what looks like a call is text."""
    reasoning: bool = True
    """Whether the answer may begin with reasoning of its own where a grammar holds it."""
    reasoning_budget: int | None = None
    """Most tokens of reasoning, then its end is forced. None: no limit."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GenerationParams:
    """How one answer is sampled. The defaults sample from the model's own distribution."""

    max_tokens: int | None = None
    """None: until the context is full."""
    min_tokens: int = 0
    """The turn does not end before. A grammar that is complete ends it all the same."""
    stop: tuple[str, ...] = ()
    """Text that ends the answer and is not part of it. Where a grammar holds the answer, such an end is told as
    `length`: what ends by `stop` is whole."""
    banned_strings: tuple[str, ...] = ()
    banned_tokens: tuple[int, ...] = ()
    """Tokens that are never sampled."""
    ignore_eos: bool = False
    """Go on after a token that ends the turn, until `max_tokens` or a stop string."""
    temperature: float = 1.0
    """0: greedy."""
    temperature_last: bool = False
    """Apply the temperature after `min_p`, `top_k` and `top_p` instead of before them."""
    top_k: int = 0
    """0: off."""
    top_p: float = 1.0
    min_p: float = 0.0
    xtc_probability: float = 0.0
    """How often the likeliest tokens are left out, all but the last of those above `xtc_threshold`. 0: never."""
    xtc_threshold: float = 0.1
    adaptive_target: float = 1.0
    """Adaptive-p: the probability around which tokens are chosen. 1: off."""
    adaptive_decay: float = 0.9
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    penalty_range: int | None = None
    """Last tokens, of prompt and answer, that the three penalties look at. None: all."""
    repetition_decay: int = 0
    """Tokens before that range over which the penalties fade."""
    dry_multiplier: float = 0.0
    """Penalty for going on with a repeated sequence. 0: off."""
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_range: int = 0
    """Last tokens that are searched for repetitions. 0: all."""
    dry_sequence_breakers: tuple[str, ...] | None = None
    """Texts over which no repetition is followed. None: the engine's own."""
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    """Token id -> what is added to its logit."""
    seed: int | None = None
    """The same seed, prompt and parameters give the same answer on the same machine."""
    grammar: Grammar | None = None
    top_logprobs: int | None = None
    """None: no probabilities. 0: of the chosen tokens only. n: also of the n likeliest."""
    chat: ChatAnswer | None = None
    """None: the answer is text as it comes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenLogprob:
    """Natural log probability of one sampled token, from the raw logits (before temperature and filters)."""

    token: str
    logprob: float
    top: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Started:
    """The request left the queue and holds its pages."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PrefillProgress:
    """`done_tokens` of `total_tokens` of the prompt are in the cache."""

    done_tokens: int
    total_tokens: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Text:
    """A piece of the answer. It may cover several tokens, and is never empty."""

    text: str
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Reasoning:
    """A piece of what the model thinks before it answers. Never empty."""

    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolCallStart:
    """The answer calls a tool. Its arguments follow; of several calls each is complete before the next one starts."""

    index: int
    """Counts the answer's calls from 0."""
    id: str
    name: str
    """As the model wrote it: it may be none of the chat's tools."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolCallArguments:
    """A piece of a call's arguments. All pieces together are a JSON object, unless the model wrote none or was cut."""

    index: int
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Finished:
    """The last event of a generation."""

    reason: Literal["stop", "length", "tool_calls"]
    """`tool_calls`: the model ended its turn, and called at least one tool in it."""
    prompt_tokens: int
    cached_tokens: int
    """Leading prompt tokens that were not computed again, whichever tier they came from."""
    completion_tokens: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Prefilled:
    """The last event of a prefill: the whole prompt is in the cache."""

    prompt_tokens: int
    cached_tokens: int
    pinned_tokens: int = 0
    """How many of its tokens are now protected from eviction; less than asked for past `pin_max_fraction`."""


GenerationEvent: TypeAlias = Started | PrefillProgress | Text | Reasoning | ToolCallStart | ToolCallArguments | Finished
PrefillEvent: TypeAlias = Started | PrefillProgress | Prefilled


class EventStream(Protocol):
    """Events of one request, in order. Ends after `Finished` or `Prefilled`, or raises an `EngineError`.

    `aclose` before the end cancels the request; its pages are free at the next chunk boundary. It may be called
    more than once and returns without waiting for the engine.
    """

    def __aiter__(self) -> AsyncIterator[GenerationEvent | PrefillEvent]: ...
    async def __anext__(self) -> GenerationEvent | PrefillEvent: ...
    async def aclose(self) -> None: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredPrefix:
    """A prefix that the engine itself found to be shared: whole pages. Valid for this `cache_fingerprint` only."""

    digest: str
    """Names it under its fingerprint: the chained hash of its last page, hexadecimal."""
    token_ids: tuple[int, ...]
    credit: float
    """Of its last page, when it was written."""
    written_at: float
    """Seconds since the epoch. A prefix that goes on being hit is written again, every few minutes at most."""
    cache_fingerprint: str


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineInfo:
    """What stays true from load to close."""

    model_key: str
    engine: str
    context_length: int
    """Most tokens of prompt and answer together."""
    page_size: int
    """Tokens in one page of the cache."""
    cache_tokens: int
    """Tokens in the whole cache."""
    cache_fingerprint: str
    """Changes whenever token ids or pages of an earlier load may no longer fit (weights, tokenizer, template)."""
    max_batch_size: int = 1
    """Sequences that are decoded together."""
    tool_format: str | None = None
    """The form that the model's tool calls are expected in. None: none is known, and calls stay text."""
    has_reasoning: bool = False
    """Whether reasoning is told from the answer."""
    reads_images: bool = False
    text_start: tuple[int, ...] = ()
    """Tokens that begin a plain text, which `tokenize` does not add: a BOS where the tokenizer wants one."""
    effective_settings: Mapping[str, str] = field(default_factory=dict)
    """Option -> who implements it and with which value, for one line in the log."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineStats:
    """A snapshot. Token counts are of whole pages; counters run from load."""

    active_requests: int = 0
    queued_requests: int = 0
    cache_tokens_used: int = 0
    """In pages that running requests hold."""
    cache_tokens_reusable: int = 0
    cache_tokens_pinned: int = 0
    sysmem_tokens: int = 0
    disk_tokens: int = 0
    counters: Mapping[str, float] = field(default_factory=dict)
    """Named by what they count: `prompt_tokens`, `cached_tokens`, `completion_tokens`, `evictions`, ..."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadProgress:
    """`done` of `total` steps of the load; `stage` says what is being done."""

    stage: str
    done: int
    total: int


@runtime_checkable
class Engine(Protocol):
    """A loaded model. Made by `Loader`, ends with `close`. Every call may raise `EngineUnavailable`."""

    @property
    def info(self) -> EngineInfo: ...

    async def render(self, chat: Chat) -> Prompt:
        """The chat in tokens, `num_head_tokens` included. Raises `InvalidRequest` where the template refuses it, or
        where one of its images cannot be read. What was prepared of its images stays for a while, by use: a prompt
        with images is for `generate` or `prefill` soon.

        Where its text begins with a prompt of this engine's, followed by the whole answer that was sent for it, it
        begins with their very tokens, even if the tokenizer would cut that text otherwise.
        """

    async def render_head(self, head: Head) -> Prompt:
        """The tokens that the first request of every conversation with this head begins with; empty where the
        template puts nothing first. A few templates move their tools behind later turns, which then share less."""

    async def tokenize(self, text: str) -> Prompt:
        """Plain text in tokens, special tokens recognised, no template. Goes on from an answer as `render` does."""

    def generate(self, prompt: Prompt, params: GenerationParams, *, retain: bool = True) -> EventStream:
        """Answers the prompt. `Started` comes first, `Finished` last.

        With `retain=False` nothing of the request outlives the process: no disk tier, no captured prefix. Nor does a
        follow-up find the tokens of its answer. Of any request what comes after its first image does not. Raises
        `QueueFull` where others' images have taken the place of the prompt's.
        """

    def prefill(self, prompt: Prompt, *, pin: bool = False) -> EventStream:
        """Computes the prompt's pages while no request wants the engine, yielding at chunk boundaries to any that
        does. `Prefilled` comes last. With `pin` its pages stay until `unpin`."""

    async def unpin(self, prompt: Prompt) -> None:
        """Ends the protection that `prefill(prompt, pin=True)` gave. No error where there is none."""

    async def stored_prefixes(self, written_after: float = 0.0) -> tuple[StoredPrefix, ...]:
        """Prefixes that the engine captured, those written after that time, most recently written first."""

    async def forget(self, prompt: Prompt) -> int:
        """Drops every page that holds a part of the prompt, or that follows one that does, from every tier, and the
        tokens of the conversations that begin with it.

        Returns how many pages were dropped. Pages that a running request holds go when it ends.
        """

    async def stats(self) -> EngineStats: ...

    async def close(self) -> None:
        """Cancels what runs, writes what is to be kept, frees the memory. May be called more than once."""


@runtime_checkable
class Mortal(Protocol):
    """An engine that can die by itself, and notices."""

    async def died(self) -> EngineDied | None:
        """Waits for the engine's end. Returns why it died, or None where it was closed. For any number of tasks."""


class Loader(Protocol):
    """What a name in the registry leads to: the engine's class."""

    async def load(self, settings: EngineSettings, report: Callable[[LoadProgress], None]) -> Engine:
        """Loads the model. `report` is called on the loop. Raises `LoadFailed`, which names the fault."""
