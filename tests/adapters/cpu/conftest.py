"""A tiny model of random weights for what is exact, and the demo model for what needs sense."""

# ruff: noqa: E402 - exllamav3 can only be imported after `install`

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from exllamav3_adapters.cpu.install import install

install()

import torch
from exllamav3 import Generator, GreedySampler, Job, Tokenizer
from hypothesis import settings
from tiny_model import write_tiny_model

from exllamav3_adapters.cpu.model import CpuModel, load_model, make_cache
from exllamav3_adapters.demo_model import demo_model_folder

# The machines that run this are shared: how long an example took says nothing.
settings.register_profile("no-deadline", deadline=None)
settings.load_profile("no-deadline")


@dataclass
class Answer:
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    last: dict[str, Any] = field(default_factory=dict)
    results: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True)
class Loaded:
    model: CpuModel
    tokenizer: Any

    def generator(self, max_num_tokens: int = 4096, **options: Any) -> Any:
        """A generator over a cache of its own, with chunks of one page."""
        cache = make_cache(self.model, max_num_tokens)
        defaults = {"max_chunk_size": 256, "model": self.model, "cache": cache, "tokenizer": self.tokenizer}
        return Generator(**(defaults | options))

    def ids(self, text: str) -> torch.Tensor:
        return self.tokenizer.encode(text, encode_special_tokens=True)


def load(folder: Path) -> Loaded:
    model = load_model(folder, lambda progress: None)
    return Loaded(model, Tokenizer(model.config))


@pytest.fixture(scope="session", autouse=True)
def _no_advice() -> None:
    logging.getLogger("transformers").setLevel(logging.ERROR)


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    """A tiny model gains nothing from a second thread, and on a busy machine the two wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="session")
def tiny(tiny_folder: Path) -> Loaded:
    return load(tiny_folder)


@pytest.fixture(scope="session")
def demo() -> Loaded:
    return load(demo_model_folder())


@pytest.fixture(scope="session")
def write_model() -> Callable[..., Path]:
    return write_tiny_model


@pytest.fixture(scope="session")
def load_folder() -> Callable[[Path], Loaded]:
    return load


@pytest.fixture
def answer() -> Callable[..., list[Answer]]:
    """Runs jobs of one generator to their ends, all at once, and gives their answers in order."""

    def run(generator: Any, *jobs: Job) -> list[Answer]:
        answers = {id(job): Answer() for job in jobs}
        for job in jobs:
            generator.enqueue(job)
        while generator.num_remaining_jobs():
            for result in generator.iterate():
                if result["stage"] == "error":
                    raise result["error"]
                if result["stage"] != "streaming":
                    continue
                found = answers[result["identifier"]]
                found.results.append(result)
                found.text += result.get("text", "")
                if "token_ids" in result:
                    found.token_ids += result["token_ids"].flatten().tolist()
                if result["eos"]:
                    found.last = result
        return list(answers.values())

    return run


@pytest.fixture
def job() -> Callable[..., Job]:
    """A job that is told apart by its identity, greedy unless it says otherwise."""

    def make(input_ids: torch.Tensor, max_new_tokens: int, **options: Any) -> Job:
        defaults: dict[str, Any] = {"sampler": GreedySampler(), "max_rq_tokens": 512}
        made = Job(input_ids=input_ids, max_new_tokens=max_new_tokens, **(defaults | options))
        made.identifier = id(made)
        return made

    return make


def random_ids(length: int, seed: int, vocabulary: int = 259) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, vocabulary, (1, length), generator=generator)


@pytest.fixture(scope="session")
def token_ids() -> Callable[..., torch.Tensor]:
    """Random tokens of the tiny model: (1, length)."""
    return random_ids
