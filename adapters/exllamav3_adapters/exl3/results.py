"""From exllamav3's result dictionaries to the contract's events, in one place."""

from __future__ import annotations

import math
from typing import Any

from exllamav3_adapters.contract import (
    Finished,
    GenerationEvent,
    Prefilled,
    PrefillEvent,
    PrefillProgress,
    Started,
    Text,
    TokenLogprob,
)
from exllamav3_adapters.errors import EngineError, JobFailed
from exllamav3_adapters.exl3.request import Request

FINISH_REASONS = {
    "stop_token": "stop",
    "stop_string": "stop",
    "end_filter": "stop",
    "max_new_tokens": "length",
    "loop_detected": "stop",
}
"""exllamav3's `eos_reason` -> OpenAI's finish reason."""


def events_of(result: dict[str, Any], names: list[str], pieces: list[str]) -> list[GenerationEvent | PrefillEvent]:
    """The events that one result of `Generator.iterate` means for its request; raises nothing. `names`: what each token
    is called among probabilities, `pieces`: what it is as a part of this answer."""
    request: Request = result["identifier"]
    match result["stage"]:
        case "started" if not request.started:
            request.started = True
            return [Started()]
        case "prefill" if not request.answering:
            return [_progress(request, result)]
        case "streaming" if request.background:
            return [_prefilled(request, result)] if result["eos"] else []
        case "streaming":
            request.answering = True
            return [*_text(request, result, names, pieces), *_finished(request, result)]
        case _:
            return []


def failure_of(error: BaseException) -> EngineError:
    """What the request's caller is told of an exception inside its job. Never the prompt, never a traceback."""
    if isinstance(error, EngineError):
        return error
    return JobFailed(f"this request failed in the engine ({type(error).__name__}: {error}); other requests go on")


def _progress(request: Request, result: dict[str, Any]) -> PrefillProgress:
    """exllamav3 leaves the prompt's last token to the first decode step; here it counts as done with the others."""
    total = len(request.prompt.token_ids)
    complete = result["curr_progress"] >= result["max_progress"]
    return PrefillProgress(done_tokens=total if complete else result["curr_progress"], total_tokens=total)


def _prefilled(request: Request, result: dict[str, Any]) -> Prefilled:
    prompt_tokens = len(request.prompt.token_ids)
    computed = request.computed_tokens + max(0, prompt_tokens - result["cached_tokens"])
    return Prefilled(prompt_tokens=prompt_tokens, cached_tokens=max(0, prompt_tokens - computed))


def _finished(request: Request, result: dict[str, Any]) -> list[Finished]:
    """A stop string may end an answer that its grammar would have gone on with: the answer is cut then, and says so."""
    if not result["eos"]:
        return []
    cut = FINISH_REASONS[result["eos_reason"]] == "length" or (
        result["eos_reason"] == "stop_string" and request.params.grammar is not None
    )
    return [
        Finished(
            reason="length" if cut else "stop",
            prompt_tokens=len(request.prompt.token_ids),
            cached_tokens=min(result["cached_tokens"], len(request.prompt.token_ids)),
            completion_tokens=result["new_tokens"],
        )
    ]


def _text(request: Request, result: dict[str, Any], names: list[str], pieces: list[str]) -> list[Text]:
    if request.params.top_logprobs is not None and "token_probs" in result:
        request.held_logprobs += _logprobs(result, names)
    text = released_text(result, pieces)
    if not text:
        return []
    logprobs, request.held_logprobs = tuple(request.held_logprobs), []
    return [Text(text=text, logprobs=logprobs)]


def released_text(result: dict[str, Any], pieces: list[str]) -> str:
    """The text that a result adds to the answer, of which `pieces` are what each token is. At the end exllamav3 1.6.5
    gives too little or too much."""
    text: str = result.get("text", "")
    match result.get("eos_reason"):
        case "stop_token":
            # It drops what it held back in case a stop string would come of it; none has.
            held: str = result.get("held", {}).get("text", "")
            return text + held.removesuffix(pieces[result["eos_triggering_token_id"]])
        case "stop_string":
            # Where the held text has an incomplete character it decodes the held tokens anew, stop string and all.
            return text.partition(result["eos_triggering_string"])[0]
        case _:
            return text


def _logprobs(result: dict[str, Any], id_to_piece: list[str]) -> list[TokenLogprob]:
    tokens = result["token_ids"][0].tolist()
    probabilities = result["token_probs"][0].tolist()
    top: list[tuple[tuple[str, float], ...]] = [()] * len(tokens)
    if "top_k_tokens" in result:
        likeliest = zip(result["top_k_tokens"][0].tolist(), result["top_k_probs"][0].tolist(), strict=True)
        top = [tuple((id_to_piece[token], _log(p)) for token, p in zip(ids, ps, strict=True)) for ids, ps in likeliest]
    return [
        TokenLogprob(token=id_to_piece[token], logprob=_log(p), top=ranked)
        for token, p, ranked in zip(tokens, probabilities, top, strict=True)
    ]


def _log(probability: float) -> float:
    """JSON knows no infinity; -9999 is what OpenAI sends for a token that cannot be."""
    return math.log(probability) if probability > 0.0 else -9999.0
