"""Plain text completed: one prompt or several, each once or several times over."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace

from exllamav3_adapters.contract import EngineInfo, Finished, GenerationParams, Prompt, Text
from exllamav3_adapters.errors import ContextLengthExceeded, InvalidRequest
from litellm_exllamav3.choice_streams import ChoiceStreams
from litellm_exllamav3.copies import has_prefilled, other_seed, refuse_past_the_batch
from litellm_exllamav3.request import Request
from litellm_exllamav3.served_model import ServedModel
from litellm_exllamav3.text_prompts import TextPrompt


@dataclass(frozen=True, kw_only=True, slots=True)
class TextCall:
    """All that one request asks of a model. Copy c of prompt p is choice `p * num_copies + c`, as OpenAI has it."""

    model: ServedModel
    prompts: Sequence[TextPrompt]
    params: GenerationParams
    num_copies: int = 1
    """Answers to each prompt."""
    starts_text: bool = True
    """Whether texts begin with `EngineInfo.text_start`. Token ids are taken as they are."""
    timeout_seconds: float | None = None
    retain: bool = True

    @property
    def num_choices(self) -> int:
        return len(self.prompts) * self.num_copies

    async def answer(self) -> AsyncGenerator[tuple[int, Text | Finished], None]:
        """The events of each choice with its index, each ended by `Finished`. Closing the generator cancels all jobs.

        The `Finished` of choice 0 comes last, with the tokens of all prompts, each counted once. Raises any
        `EngineError`; an answer that fails ends the others.
        """
        async with self.model.admit(self.timeout_seconds) as request:
            info = await request.info()
            refuse_past_the_batch(self.num_copies, info)
            prompts = [await self._tokens(request, index, info) for index in range(len(self.prompts))]
            first: Finished | None = None
            cached_tokens = 0
            async with aclosing(_Answers(self, request, prompts, info.max_batch_size).events()) as events:
                async for index, event in events:
                    if isinstance(event, Finished):
                        cached_tokens += event.cached_tokens if index % self.num_copies == 0 else 0
                        first = event if index == 0 else first
                    if isinstance(event, Text) or (isinstance(event, Finished) and index != 0):
                        yield index, event
            if first is not None:
                prompt_tokens = sum(len(prompt.token_ids) for prompt in prompts)
                yield 0, replace(first, prompt_tokens=prompt_tokens, cached_tokens=cached_tokens)

    async def count_prompts(self) -> int:
        """The tokens that the usage would have. Raises as `answer`."""
        async with self.model.admit(self.timeout_seconds) as request:
            info = await request.info()
            prompts = [await self._tokens(request, index, info) for index in range(len(self.prompts))]
            return sum(len(prompt.token_ids) for prompt in prompts)

    async def _tokens(self, request: Request, index: int, info: EngineInfo) -> Prompt:
        prompt = self.prompts[index]
        where = f"prompt[{index}]" if len(self.prompts) > 1 else "prompt"
        if isinstance(prompt, str):
            token_ids = (await request.tokenize(prompt)).token_ids if prompt else ()
            start = info.text_start if self.starts_text else ()
            if token_ids[: len(start)] != start:  # a client may have written it itself
                token_ids = start + token_ids
        else:
            token_ids = prompt
        if not token_ids:
            raise InvalidRequest(f"{where} is empty; send at least one token.", where)
        most = min(info.context_length, info.cache_tokens)
        if len(token_ids) >= most:
            raise ContextLengthExceeded(
                f"{where} has {len(token_ids)} tokens and the model's context, which holds prompt and answer, {most}; "
                "shorten it",
                where,
                prompt_tokens=len(token_ids),
                max_tokens=most,
            )
        return Prompt(token_ids=token_ids)


class _Answers:
    """The streams of all choices, `max_open` side by side at most. Copies of a prompt start when it has been read."""

    def __init__(self, call: TextCall, request: Request, prompts: Sequence[Prompt], max_open: int) -> None:
        self._call = call
        self._request = request
        self._prompts = prompts
        self._max_open = max_open
        self._num_open = 0
        self._waiting = deque(index * call.num_copies for index in range(len(prompts)))
        """Choices that may start."""
        self._choices: list[int] = []
        """Of the streams, in the order in which they were opened."""
        self._copied: set[int] = set()

    async def events(self) -> AsyncGenerator[tuple[int, object], None]:
        async with aclosing(ChoiceStreams()) as streams:
            await self._open(streams)
            async for stream, event in streams:
                choice = self._choices[stream]
                if has_prefilled(event):
                    self._let_copies_start(choice // self._call.num_copies)
                self._num_open -= isinstance(event, Finished)
                await self._open(streams)
                yield choice, event

    def _let_copies_start(self, prompt: int) -> None:
        if prompt not in self._copied:
            self._copied.add(prompt)
            num_copies = self._call.num_copies
            # Before other prompts: what they are to find in the cache may not stay there.
            self._waiting.extendleft(reversed(range(prompt * num_copies + 1, (prompt + 1) * num_copies)))

    async def _open(self, streams: ChoiceStreams) -> None:
        while self._waiting and self._num_open < self._max_open:
            choice = self._waiting.popleft()
            prompt, copy = divmod(choice, self._call.num_copies)
            params = replace(self._call.params, seed=other_seed(self._call.params.seed, copy))
            self._choices.append(choice)
            self._num_open += 1
            more_follow = len(self._choices) < self._call.num_choices
            streams.add(
                await self._request.open_stream(
                    self._prompts[prompt], params, retain=self._call.retain, more_follow=more_follow
                )
            )
