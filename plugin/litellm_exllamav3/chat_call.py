"""One chat answered, from its place in the queue to its last event."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass

from exllamav3_adapters.contract import Chat, Finished, GenerationParams, Prompt, Text
from exllamav3_adapters.errors import EngineError
from litellm_exllamav3.capture import Capture, Sighting
from litellm_exllamav3.head import chat_head
from litellm_exllamav3.request import Request
from litellm_exllamav3.served_model import ServedModel

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class ChatCall:
    """All that one request asks of a served model."""

    model: ServedModel
    chat: Chat
    """Without nonces."""
    params: GenerationParams
    timeout_seconds: float | None = None
    """The client's or the operator's own limit for this request. None: the model's alone."""
    retain: bool = True
    capture: Capture | None = None
    sighting: Sighting | None = None
    """What the hook saw of this request's head. None: nothing of it is to be kept."""

    async def answer(self) -> AsyncGenerator[Text | Finished, None]:
        """The answer's text, then how it ended. Closing the generator cancels the job. Raises any `EngineError`."""
        async with self.model.admit(self.timeout_seconds) as request:
            prompt = await request.render(self.chat)
            events = await request.open_stream(prompt, self.params, retain=self.retain)
            # Now, since the engine computes meanwhile: a head that has to be rendered delays no first token.
            await self._keep_head(request, prompt)
            async with aclosing(events):
                async for event in events:
                    if isinstance(event, Text | Finished):
                        yield event

    async def _keep_head(self, request: Request, prompt: Prompt) -> None:
        """Hands a hot head to the store."""
        capture, sighting = self.capture, self.sighting
        if not self.retain or capture is None or sighting is None or not capture.wants(sighting):
            return
        head = chat_head(self.chat.messages, self.chat.tools)
        try:
            num_tokens = prompt.num_head_tokens or len((await request.render_head(head)).token_ids)
        except EngineError as error:
            # A head that cannot be kept is no fault of the request that carried it.
            logger.warning("model %s: a hot head was not kept: %s", self.model.key, error.message)
            return
        capture.keep(sighting, head, num_tokens)
