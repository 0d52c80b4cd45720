"""One chat answered, once or several times over, from its place in the queue to its last event."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, replace

from exllamav3_adapters.contract import Chat, GenerationParams, Prompt
from exllamav3_adapters.errors import EngineError
from litellm_exllamav3.answer_message import AnswerEvent
from litellm_exllamav3.capture import Capture, Sighting
from litellm_exllamav3.choice_streams import ChoiceStreams, Event
from litellm_exllamav3.copies import has_prefilled, other_seed, refuse_past_the_batch
from litellm_exllamav3.head import chat_head
from litellm_exllamav3.image_sources import ImageSources
from litellm_exllamav3.request import Request, RequestStream
from litellm_exllamav3.served_model import ServedModel

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class ChatCall:
    """All that one request asks of a served model."""

    model: ServedModel
    chat: Chat
    """Without nonces. Its images are URLs yet."""
    params: GenerationParams
    num_choices: int = 1
    """Answers to the one prompt."""
    timeout_seconds: float | None = None
    """The client's or the operator's own limit for this request. None: the model's alone."""
    retain: bool = True
    images: ImageSources | None = None
    """None: the model reads text only, and the chat has no images."""
    capture: Capture | None = None
    sighting: Sighting | None = None
    """What the hook saw of this request's head. None: nothing of it is to be kept."""

    async def answer(self) -> AsyncGenerator[tuple[int, AnswerEvent], None]:
        """The events of each answer with its index, each ended by `Finished`. Closing the generator cancels all jobs.

        Raises any `EngineError`; an answer that fails ends the others.
        """
        async with self.model.admit(self.timeout_seconds) as request:
            if self.num_choices > 1:
                refuse_past_the_batch(self.num_choices, await request.info())
            prompt = await self._render(request)
            first = await self._open_stream(request, prompt, 0)
            # Now, since the engine computes meanwhile: a head that has to be rendered delays no first token.
            await self._keep_head(request, prompt)
            async with aclosing(self._events(request, prompt, first)) as events:
                async for index, event in events:
                    if isinstance(event, AnswerEvent):
                        yield index, event

    async def _events(
        self, request: Request, prompt: Prompt, first: RequestStream
    ) -> AsyncGenerator[tuple[int, Event], None]:
        """The other answers start when the first has read the prompt, which they then find in the cache."""
        if self.num_choices == 1:
            async for event in first:
                yield 0, event
            return
        async with aclosing(ChoiceStreams()) as streams:
            streams.add(first)
            others = range(1, self.num_choices)
            async for index, event in streams:
                if others and has_prefilled(event):
                    for other in others:
                        streams.add(await self._open_stream(request, prompt, other))
                    others = range(0)
                yield index, event

    async def _open_stream(self, request: Request, prompt: Prompt, index: int) -> RequestStream:
        return await request.open_stream(
            prompt,
            replace(self.params, seed=other_seed(self.params.seed, index)),
            retain=self.retain,
            more_follow=index + 1 < self.num_choices,
        )

    async def count_prompt(self) -> int:
        """The tokens that this chat's usage would have. Raises as `answer`."""
        async with self.model.admit(self.timeout_seconds) as request:
            return len((await self._render(request)).token_ids)

    async def _render(self, request: Request) -> Prompt:
        return await request.render(self.chat if self.images is None else await self.images.read(self.chat))

    async def _keep_head(self, request: Request, prompt: Prompt) -> None:
        """Hands a hot head to the store."""
        capture, sighting = self.capture, self.sighting
        if not self.retain or capture is None or sighting is None or not capture.wants(sighting):
            return
        head = chat_head(self.chat.messages, self.chat.tools, self.chat.template_variables)
        try:
            num_tokens = prompt.num_head_tokens or len((await request.render_head(head)).token_ids)
        except EngineError as error:
            # A head that cannot be kept is no fault of the request that carried it.
            logger.warning("model %s: a hot head was not kept: %s", self.model.key, error.message)
            return
        capture.keep(sighting, head, num_tokens)
