"""The order, the times and the memory of a run."""

from __future__ import annotations

import os
from pathlib import Path

import psutil
import pytest
from gpu_check.environment import part_environment
from gpu_check.outcome import Outcome
from gpu_check.part_table import PARTS, Part
from gpu_check.runner import Runner


class Heard:
    """A watcher that keeps what it hears."""

    def __init__(self) -> None:
        self.words: list[str] = []

    def started(self, part: Part) -> None:
        self.words.append(f"{part.name} begins")

    def says(self, part: Part, text: str) -> None:
        self.words.append(f"{part.name}: {text}")

    def ended(self, part: Part, outcome: Outcome) -> None:
        self.words.append(f"{part.name} {outcome.status}")


def part(name: str, *needs: str, seconds: float = 30.0, needs_card: bool = False) -> Part:
    function = f"sample_parts:{name.split('_')[0]}"
    return Part(name=name, function=function, seconds=seconds, needs=needs, needs_card=needs_card)


def runner(state: Path, *parts: Part, seconds: float = 60.0, only: frozenset[str] = frozenset()) -> Runner:
    environment = part_environment("cpu", state)
    environment["PYTHONPATH"] += os.pathsep + str(Path(__file__).parent)
    return Runner(
        engine="cpu", state=state, seconds=seconds, environment=environment, watcher=Heard(), parts=parts, only=only
    )


def test_a_part_that_is_done_is_not_run_again(tmp_path: Path) -> None:
    for _ in range(2):
        outcomes = runner(tmp_path, part("count")).run()
        assert outcomes["count"].figures == {"runs": 1, "seconds": 30.0}


def test_a_part_that_failed_is_run_again_and_says_why(tmp_path: Path) -> None:
    for _ in range(2):
        run = runner(tmp_path, part("fail"))
        assert run.run()["fail"].error == "a page came back wrong"
        assert isinstance(run.watcher, Heard)
        assert run.watcher.words == ["fail begins", "fail failed"]


def test_the_others_run_and_those_that_need_it_do_not(tmp_path: Path) -> None:
    outcomes = runner(tmp_path, part("fail"), part("count_a", "fail"), part("count_b")).run()
    assert [outcome.status for outcome in outcomes.values()] == ["failed", "not run", "done"]
    assert outcomes["count_a"].error == "it needs fail"


def test_a_process_that_dies_is_told_with_its_last_words(tmp_path: Path) -> None:
    outcome = runner(tmp_path, part("crash")).run()["crash"]
    assert outcome.status == "failed"
    assert outcome.error == "its process ended with 3: Fatal: illegal access"


def test_a_part_beyond_its_time_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    outcomes = runner(tmp_path, part("hang", seconds=3.0), part("count")).run()
    assert outcomes["hang"].status == "out of time"
    assert outcomes["hang"].error == "it was ended after 3 s; it had said last: waiting"
    assert outcomes["count"].status == "done"
    child = int((tmp_path / "child").read_text())
    assert not psutil.pid_exists(child) or psutil.Process(child).status() == psutil.STATUS_ZOMBIE


def test_no_part_has_more_time_than_is_left_for_all(tmp_path: Path) -> None:
    outcomes = runner(tmp_path, part("count"), seconds=20.0).run()
    assert outcomes["count"].figures["seconds"] <= 20.0
    outcomes = runner(tmp_path / "other", part("count"), seconds=1.0).run()
    assert outcomes["count"].error == "no time was left"


def test_what_needs_a_card_is_left_out_on_a_cpu_and_what_follows_runs(tmp_path: Path) -> None:
    outcomes = runner(tmp_path, part("count_a", needs_card=True), part("count_b", "count_a")).run()
    assert [outcome.status for outcome in outcomes.values()] == ["not run", "done"]


def test_only_what_was_asked_for_runs(tmp_path: Path) -> None:
    outcomes = runner(tmp_path, part("count_a"), part("count_b"), only=frozenset({"count_b"})).run()
    assert [outcome.status for outcome in outcomes.values()] == ["not run", "done"]


def test_what_a_part_says_is_heard_while_it_runs(tmp_path: Path) -> None:
    run = runner(tmp_path, part("count"))
    run.run()
    assert isinstance(run.watcher, Heard)
    assert run.watcher.words == ["count begins", "count: run 1", "count done"]


def test_every_part_needs_earlier_ones_alone() -> None:
    names = [part.name for part in PARTS]
    for number, one in enumerate(PARTS):
        assert set(one.needs) <= set(names[:number])


def test_a_card_builds_for_itself_alone_and_apart_from_the_users_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    found = part_environment("cuda", tmp_path, "9.0", 100.0)
    assert found["TORCH_CUDA_ARCH_LIST"] == "9.0"
    assert found["MAX_JOBS"] == "16"
    assert found["TORCH_EXTENSIONS_DIR"].startswith(str(tmp_path))
    assert str(tmp_path / "site" / "bin") in found["PATH"].split(os.pathsep), "ninja lies there"
    assert part_environment("cuda", tmp_path, "9.0", 10.0)["MAX_JOBS"] == "2", "a compiler takes 4 GiB"
