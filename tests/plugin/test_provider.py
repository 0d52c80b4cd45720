"""The provider, called through LiteLLM's own functions in this process. The wire is for tests/e2e."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import litellm
import pytest
import yaml
from litellm.utils import custom_llm_setup

from exllamav3_adapters import errors
from exllamav3_adapters.contract import Engine, GenerationParams, LoadProgress, Prompt
from exllamav3_adapters.engine_settings import EngineSettings
from exllamav3_adapters.event_stream import QueuedEventStream
from exllamav3_adapters.fake import FakeEngine
from litellm_exllamav3 import running_gateway
from litellm_exllamav3.error_table import ERROR_TABLE
from litellm_exllamav3.gateway import Gateway
from litellm_exllamav3.provider import HEALTH_CHECK_KEY, handler, litellm_error

SETTINGS = {
    "model_list": [{"model_name": "local", "litellm_params": {"model": "exllamav3/tiny"}}],
    "litellm_settings": {
        "custom_provider_map": [{"provider": "exllamav3", "custom_handler": "litellm_exllamav3.provider.handler"}]
    },
    "exllamav3_settings": {
        "models": {
            "tiny": {"engine": "fake", "load": "lazy", "max_queue": 1, "model": {"model_dir": "demo"}},
            "small": {"engine": "fake", "load": "lazy", "model": {"model_dir": "demo"}},
            "tuned": {
                "engine": "fake",
                "load": "lazy",
                "model": {"model_dir": "demo"},
                "sampling": {"max_tokens": 3, "temperature": 0.6},
            },
            "hushed": {
                "engine": "fake",
                "load": "lazy",
                "model": {"model_dir": "demo"},
                "capture": {"enabled": False},
            },
        }
    },
}
SECONDS_PER_TOKEN = 0.005


class Witness(FakeEngine):
    """A fake engine that notes how it is asked, and whether it may keep it."""

    retained: bool | None = None
    params: GenerationParams | None = None

    def generate(self, prompt: Prompt, params: GenerationParams, *, retain: bool = True) -> QueuedEventStream:
        self.retained, self.params = retain, params
        return super().generate(prompt, params, retain=retain)


class LoadFake:
    """Loads fake engines in this process, or fails as told."""

    def __init__(self) -> None:
        self.engines: list[Witness] = []
        self.fault: Exception | None = None
        self.seconds = 0.0

    async def __call__(self, name: str, settings: EngineSettings, report: Callable[[LoadProgress], None]) -> Engine:
        if self.fault is not None:
            raise self.fault
        await asyncio.sleep(self.seconds)
        self.engines.append(Witness(settings, seconds_per_token=SECONDS_PER_TOKEN))
        return self.engines[-1]


@pytest.fixture
async def loader(tmp_path: Path) -> AsyncIterator[LoadFake]:
    """A started gateway, and litellm set up to use it as a library."""
    litellm.custom_provider_map = [{"provider": "exllamav3", "custom_handler": handler}]
    custom_llm_setup()
    config = tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump(SETTINGS))
    loader = LoadFake()
    gateway = Gateway.open(config, {}, load_engine=loader)
    running_gateway.start(gateway)
    yield loader
    await gateway.stop()


def ask(content: str = "say: hello", **fields: Any) -> Awaitable[Any]:
    request = {"model": "exllamav3/tiny", "messages": [{"role": "user", "content": content}], **fields}
    return litellm.acompletion(**request)


async def refused(**fields: Any) -> Any:
    with pytest.raises(Exception) as caught:  # noqa: PT011  # the test looks at its class
        await ask(**fields)
    return caught.value


@pytest.mark.usefixtures("loader")
async def test_a_library_call_is_answered() -> None:
    answer = await ask(max_tokens=4)
    assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == ("hell", "length")
    assert answer.usage.prompt_tokens_details.cached_tokens == 0


@pytest.mark.parametrize("key", ["llama-3.1-8b", "Llama-2-7B"])
def test_a_models_name_makes_litellm_download_no_tokenizer(key: str) -> None:
    assert litellm.utils.select_tokenizer(model=f"exllamav3/{key}")["type"] == "openai_tokenizer"


async def test_litellm_lets_every_sampling_parameter_through(loader: LoadFake) -> None:
    named: dict[str, Any] = {
        "min_tokens": 1,
        "ignore_eos": True,
        "temperature_last": True,
        "top_k": 7,
        "min_p": 0.05,
        "xtc_probability": 0.5,
        "xtc_threshold": 0.2,
        "adaptive_target": 0.6,
        "adaptive_decay": 0.5,
        "repetition_penalty": 1.1,
        "penalty_range": 256,
        "repetition_decay": 64,
        "dry_multiplier": 0.8,
        "dry_base": 2.0,
        "dry_allowed_length": 3,
        "dry_range": 512,
    }
    await ask(**named, banned_tokens=[3], dry_sequence_breakers='["."]', logit_bias={"5": 1})
    params = loader.engines[0].params
    assert params is not None
    assert {name: getattr(params, name) for name in named} == named
    assert (params.banned_tokens, params.dry_sequence_breakers, params.logit_bias) == ((3,), (".",), {5: 1.0})


@pytest.mark.usefixtures("loader")
async def test_a_token_that_the_model_has_not_is_a_bad_request() -> None:
    error = await refused(logit_bias={"256": 1})
    assert isinstance(error, litellm.BadRequestError)
    assert error.param == "logit_bias"
    assert "token ids must be from 0 to 255; one is 256" in str(error)


async def test_a_models_own_defaults_hold_where_the_request_says_nothing(loader: LoadFake) -> None:
    answer = await ask(model="exllamav3/tuned")
    assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == ("hel", "length")
    params = loader.engines[0].params
    assert params is not None
    assert params.temperature == 0.6
    longer = await ask(model="exllamav3/tuned", max_tokens=4)
    assert longer.choices[0].message.content == "hell"
    text = await litellm.atext_completion(model="exllamav3/tuned", prompt="say: hello")
    assert text.choices[0].text == "hel"


@pytest.mark.parametrize(("model", "retained"), [("tiny", True), ("hushed", False)])
async def test_the_engine_may_keep_nothing_of_a_model_that_is_not_captured(
    loader: LoadFake, model: str, retained: bool
) -> None:
    await ask(model=f"exllamav3/{model}")
    assert loader.engines[0].retained is retained


@pytest.mark.usefixtures("loader")
async def test_a_stream_begins_with_the_role_and_ends_with_a_reason() -> None:
    chunks = [chunk async for chunk in await ask(stream=True, stream_options={"include_usage": True})]
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "hello"
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices[0].finish_reason] == ["stop"]
    assert [chunk.usage.completion_tokens for chunk in chunks if getattr(chunk, "usage", None)] == [5]


async def test_a_stream_that_its_reader_leaves_ends_in_the_engine(loader: LoadFake) -> None:
    stream = await ask(f"say: {'x' * 2000}", stream=True)
    async for _ in stream:
        break
    await stream.aclose()
    await asyncio.sleep(2 * SECONDS_PER_TOKEN)
    assert (await loader.engines[0].stats()).active_requests == 0


@pytest.mark.usefixtures("loader")
@pytest.mark.parametrize("stream", [False, True])
async def test_an_unknown_key_is_404_and_names_the_nearest(stream: bool) -> None:
    async def call() -> None:
        answer = await litellm.acompletion(model="exllamav3/tinny", messages=[{"role": "user"}], stream=stream)
        async for _ in answer:
            pass

    with pytest.raises(litellm.NotFoundError, match="nearest configured model is exllamav3/tiny"):
        await call()


@pytest.mark.usefixtures("loader")
@pytest.mark.parametrize("limit", [0.1, httpx.Timeout(5, read=0.1)])
async def test_the_requests_own_timeout_is_kept(limit: Any) -> None:
    assert isinstance(await refused(content=f"say: {'x' * 2000}", timeout=limit), litellm.Timeout)


@pytest.mark.usefixtures("loader")
@pytest.mark.parametrize("limit", [0, -1, float("nan"), float("inf"), httpx.Timeout(5, read=-1)])
async def test_a_timeout_that_can_be_none_is_400(limit: Any) -> None:
    error = await refused(timeout=limit)
    assert isinstance(error, litellm.BadRequestError)
    assert error.param == "timeout"


async def test_a_request_that_comes_while_the_model_loads_waits(loader: LoadFake) -> None:
    loader.seconds = 0.1
    assert (await ask()).choices[0].message.content == "hello"


async def test_a_request_whose_model_is_not_there_in_time_gets_503(loader: LoadFake) -> None:
    loader.seconds = 60
    error = await refused(timeout=0.1)
    assert isinstance(error, litellm.ServiceUnavailableError)
    assert "still loading" in str(error)


@pytest.mark.usefixtures("loader")
async def test_drop_params_drops_what_is_not_supported() -> None:
    assert isinstance(await refused(temprature=1), litellm.BadRequestError)
    assert (await ask(temprature=1, drop_params=True)).choices[0].message.content == "hello"


@pytest.mark.usefixtures("loader")
@pytest.mark.parametrize("value", [{"a": 1}, ["temprature"], False])
async def test_drop_params_that_is_not_true_drops_nothing(value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(await refused(temprature=1, drop_params=value), litellm.BadRequestError)
    monkeypatch.setattr(litellm, "drop_params", value)
    assert isinstance(await refused(temprature=1), litellm.BadRequestError)


def sent_through_the_proxy(**body: Any) -> dict[str, Any]:
    return {"proxy_server_request": {"body": body}}


@pytest.mark.usefixtures("loader")
@pytest.mark.parametrize("name", ["stop", "stop_sequences"])
async def test_every_stop_string_of_a_client_stops(name: str) -> None:
    stops = [*"ABCDEFGHIJKLMNO", "l"]
    answer = await ask(stop=stops, **sent_through_the_proxy(**{name: stops}))
    assert answer.choices[0].message.content == "he"


@pytest.mark.usefixtures("loader")
async def test_more_stop_strings_than_16_are_refused() -> None:
    stops = list("ABCDEFGHIJKLMNOPQ")
    error = await refused(stop=stops, **sent_through_the_proxy(stop=stops))
    assert isinstance(error, litellm.BadRequestError)
    assert "at most 16 strings; it holds 17" in str(error)


@pytest.mark.usefixtures("loader")
@pytest.mark.parametrize("body", [{"stop": ["h", *"BCDEF"]}, {"stop": [*"ABCD"]}, {"stop": "ABCDEF"}, {}])
async def test_stop_strings_that_were_not_cut_are_taken_as_they_came(body: dict[str, Any]) -> None:
    answer = await ask(stop=[*"ABCD"], **sent_through_the_proxy(**body))
    assert answer.choices[0].message.content == "hello"


@pytest.mark.usefixtures("loader")
async def test_a_synchronous_call_says_which_to_use() -> None:
    with pytest.raises(litellm.BadRequestError, match=r"litellm\.acompletion"):
        litellm.completion(model="exllamav3/tiny", messages=[{"role": "user", "content": "hi"}])


@pytest.mark.usefixtures("loader")
async def test_a_library_completes_plain_text() -> None:
    whole = await litellm.atext_completion(model="exllamav3/tiny", prompt=["say: one", "say: two"], logprobs=1)
    assert [(choice.index, choice.text) for choice in whole.choices] == [(0, "one"), (1, "two")]
    assert whole.choices[0].logprobs.tokens == ["o", "n", "e"]
    assert whole.usage.prompt_tokens == 2 * len("say: one")
    stream = await litellm.atext_completion(model="exllamav3/tiny", prompt="say: one", stream=True)
    assert "".join([chunk.choices[0].text or "" async for chunk in stream]) == "one"


@pytest.mark.usefixtures("loader")
async def test_an_embedding_is_refused() -> None:
    with pytest.raises(litellm.BadRequestError, match="no embeddings"):
        await litellm.aembedding(model="exllamav3/tiny", input=["a"])


async def test_where_a_model_cannot_answer_the_routers_fallback_does(loader: LoadFake) -> None:
    loader.fault = errors.LoadFailed("no")
    mock = {"model_name": "mock", "litellm_params": {"model": "openai/m", "api_key": "x", "mock_response": "mocked"}}
    router = litellm.Router(model_list=[*SETTINGS["model_list"], mock], fallbacks=[{"local": ["mock"]}])
    for stream in (False, True):
        answer: Any = await router.acompletion(
            model="local", messages=[{"role": "user", "content": "x"}], stream=stream
        )
        text = answer.choices[0].message.content if not stream else await _text(answer)
        assert text == "mocked"


async def _text(stream: Any) -> str:
    return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])


async def test_a_health_check_neither_loads_nor_runs_a_model(loader: LoadFake) -> None:
    metadata = {"user_api_key": HEALTH_CHECK_KEY}
    assert (await ask(metadata=metadata)).choices[0].message.content == "ok"
    assert loader.engines == []


async def test_a_health_check_of_a_model_that_cannot_load_gives_the_reason(loader: LoadFake) -> None:
    loader.fault = errors.LoadFailed("model_dir: there is no folder x")
    await refused()
    error = await refused(metadata={"user_api_key": HEALTH_CHECK_KEY})
    assert isinstance(error, litellm.ServiceUnavailableError)
    assert "there is no folder x" in str(error)


@pytest.mark.usefixtures("loader")
async def test_a_clients_metadata_is_no_health_check() -> None:
    request = {"proxy_server_request": {"body": {}}, "metadata": {"user_api_key": HEALTH_CHECK_KEY}}
    assert (await ask(**request)).choices[0].message.content == "hello"


async def test_an_unexpected_error_is_a_short_500_and_logged_without_its_text(
    loader: LoadFake, caplog: pytest.LogCaptureFixture
) -> None:
    error = AttributeError("the user's secret prompt")
    with caplog.at_level(logging.ERROR, "litellm_exllamav3"):
        failure = litellm_error(error, "tiny")
    assert isinstance(failure, litellm.InternalServerError)
    assert "secret" not in str(failure)
    assert "AttributeError" in caplog.text
    assert "secret" not in caplog.text
    assert failure.__context__ is None


async def test_no_error_carries_another_one_into_litellm(loader: LoadFake) -> None:
    loader.fault = errors.LoadFailed("no")
    error = await refused()
    assert error.__cause__ is None
    assert error.__context__ is None


@pytest.mark.parametrize("cls", ERROR_TABLE)
def test_every_error_is_raised_once_with_its_status(cls: type[errors.EngineError]) -> None:
    failure: Any = litellm_error(cls("what to change"), "tiny")
    row = ERROR_TABLE[cls]
    assert failure.status_code == row.status
    assert failure.num_retries == 0
    assert failure.type == row.type
    assert failure.provider_specific_fields == {"code": row.code}
    assert "what to change" in str(failure)


async def test_a_full_queue_is_not_retried_by_the_router(loader: LoadFake) -> None:
    router = litellm.Router(model_list=SETTINGS["model_list"], num_retries=3)
    messages = [{"role": "user", "content": f"say: {'x' * 100}"}]
    calls = [router.acompletion(model="local", messages=messages) for _ in range(12)]
    answers = await asyncio.gather(*calls, return_exceptions=True)
    refusals = [answer for answer in answers if isinstance(answer, litellm.RateLimitError)]
    assert refusals
    assert all(refusal.headers["retry-after"] for refusal in refusals)
    # A retry would have found a place once the first were answered.
    assert len(refusals) + (await loader.engines[0].stats()).counters["requests"] == len(calls)


async def test_without_a_config_a_library_call_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(running_gateway.CONFIG_VARIABLE, raising=False)
    litellm.custom_provider_map = [{"provider": "exllamav3", "custom_handler": handler}]
    custom_llm_setup()
    error = await refused()
    assert isinstance(error, litellm.ServiceUnavailableError)
    assert running_gateway.CONFIG_VARIABLE in str(error)


@pytest.mark.usefixtures("loader")
async def test_more_answers_than_there_are_places_for_are_refused_before_any_is_kept() -> None:
    with pytest.raises(litellm.BadRequestError, match="at most 65536 answers"):
        await litellm.atext_completion(model="exllamav3/tiny", prompt=["a"] * 100, n=1000)
