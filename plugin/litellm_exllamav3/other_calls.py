"""Calls of LiteLLM that an exllamav3 model cannot answer, and which providers in the same config can."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from exllamav3_adapters.errors import InvalidRequest

OTHER_CALLS: Final[Mapping[str, tuple[str, str]]] = {
    "embedding": ("make no embeddings", "openai, azure, cohere, voyage, jina_ai, huggingface, infinity or ollama"),
    "image_generation": ("make no images", "openai, azure, vertex_ai, bedrock, stability or recraft"),
    "image_edit": ("edit no images", "openai, azure, vertex_ai, stability or recraft"),
    "rerank": ("rank no documents", "cohere, jina_ai, huggingface, infinity, hosted_vllm or bedrock"),
    "transcription": ("transcribe no audio", "openai, azure, groq, deepgram or fireworks_ai"),
    "speech": ("speak no audio", "openai, azure, elevenlabs, vertex_ai or gemini"),
    "moderation": ("moderate no text", "openai"),
    "ocr": ("read no scans", "mistral, azure_ai or vertex_ai"),
    "video_generation": ("make no videos", "openai, azure, vertex_ai, gemini or runwayml"),
}
"""LiteLLM's name of the call -> what a model does not do, and provider kinds that do."""


def refuse_other_call(call_type: str | None, model: str) -> None:
    """`call_type` is LiteLLM's name of the route. Raises `InvalidRequest` if no model of ours can serve it.

    LiteLLM itself finds fault with some of these calls before it asks a provider, and says nothing of help.
    """
    call = (call_type or "").removeprefix("a")  # of the asynchronous ones
    if call in OTHER_CALLS:
        raise other_call_refusal(call, model)


def other_call_refusal(call: str, model: str) -> InvalidRequest:
    """`call` is one of `OTHER_CALLS`."""
    what, providers = OTHER_CALLS[call]
    return InvalidRequest(
        f"exllamav3 models answer chats and complete text; they {what}, so exllamav3/{model} cannot serve this call. "
        f"Send it to a model of another provider in this config, such as {providers}.",
        "model",
    )
