"""The engines that the conformance suite runs over."""

import importlib.util
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace

import pytest
import pytest_asyncio

from exllamav3_adapters.contract import Engine, LoadProgress
from exllamav3_adapters.engine_settings import EngineSettings, MemoryOptions, ModelOptions
from exllamav3_adapters.hosted import HostedEngine
from exllamav3_adapters.registry import find_engine

MODEL_VARIABLE = "EXLLAMAV3_CONFORMANCE_MODEL"
"""Names a model folder instead of the demo model. Without one no card is asked to load anything."""

# Small, so that a few pages of prompt put the cache under pressure; slow enough to meet a fake at work.
SETTINGS = EngineSettings(
    model_key="conformance",
    model=ModelOptions(
        model_dir=os.environ.get(MODEL_VARIABLE, "demo"),
        max_seq_len=1280,
        cache_size=1536,
        chunk_size=256,
        max_batch_size=4,
    ),
)
CAPTURING = replace(
    SETTINGS, memory=MemoryOptions(aging_lfu=True, aging_capture_prefixes=True, aging_prefix_min_tokens=256)
)
FAKE_PACE = {
    "EXLLAMAV3_FAKE_SECONDS_PER_PREFILL_PAGE": "0.01",
    "EXLLAMAV3_FAKE_SECONDS_PER_TOKEN": "0.002",
    "EXLLAMAV3_FAKE_LOAD_SECONDS": "0.01",
}


@dataclass(frozen=True)
class EngineUnderTest:
    name: str
    hosted: bool

    async def load(self, report: Callable[[LoadProgress], None], settings: EngineSettings = SETTINGS) -> Engine:
        if self.hosted:
            return await HostedEngine.load(self.name, settings, report)
        return await find_engine(self.name).load(settings, report)


def _cpu(hosted: bool) -> object:
    missing = importlib.util.find_spec("exllamav3") is None
    return pytest.param(
        EngineUnderTest("cpu", hosted),
        id="cpu-hosted" if hosted else "cpu",
        marks=[
            pytest.mark.model,
            pytest.mark.skipif(missing, reason="exllamav3 is not installed: pip install -e .[cpu]"),
        ],
    )


def _cuda(hosted: bool) -> object:
    return pytest.param(
        EngineUnderTest("cuda", hosted),
        id="cuda-hosted" if hosted else "cuda",
        marks=[
            pytest.mark.model,
            pytest.mark.gpu,
            pytest.mark.skipif(
                MODEL_VARIABLE not in os.environ, reason="no EXL3 model to load on a card: make test-gpu names one"
            ),
        ],
    )


ENGINES = [
    pytest.param(EngineUnderTest("fake", hosted=False), id="fake"),
    pytest.param(EngineUnderTest("fake", hosted=True), id="fake-hosted"),
    _cpu(hosted=False),
    _cpu(hosted=True),
    _cuda(hosted=False),
    _cuda(hosted=True),
]


@pytest.fixture(scope="module", params=ENGINES)
def engine_under_test(request: pytest.FixtureRequest) -> object:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in FAKE_PACE.items():
            patch.setenv(name, value)
        yield request.param


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(engine_under_test: EngineUnderTest) -> AsyncIterator[Engine]:
    """One for all tests of a module: each uses prompts of its own."""
    engine = await engine_under_test.load(lambda progress: None)
    yield engine
    await engine.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def capturing_engine(engine_under_test: EngineUnderTest) -> AsyncIterator[Engine]:
    """One that records what prompts share, from a page up."""
    engine = await engine_under_test.load(lambda progress: None, CAPTURING)
    yield engine
    await engine.close()


Load = Callable[[Callable[[LoadProgress], None]], Awaitable[Engine]]


@pytest_asyncio.fixture(loop_scope="module")
async def load(engine_under_test: EngineUnderTest) -> AsyncIterator[Load]:
    """Loads another engine of the kind, for a test that ends it."""
    engines: list[Engine] = []

    async def load(report: Callable[[LoadProgress], None] = lambda progress: None) -> Engine:
        engines.append(await engine_under_test.load(report))
        return engines[-1]

    yield load
    for engine in engines:
        await engine.close()
