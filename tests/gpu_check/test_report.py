"""The report of a run, and that the README claims no more than the reports say."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from gpu_check import report
from gpu_check.__main__ import main
from gpu_check.card import Surroundings
from gpu_check.outcome import Outcome, Outcomes

from exllamav3_adapters.preflight.machine import Gpu, Machine

PROJECT = Path(__file__).resolve().parents[2]
SECTION = "## Use it on your GPU"
SENTENCE = re.compile(r"`make test-gpu` has run on (?:(?P<none>no card yet)|these cards: (?P<cards>[^.]+))\.")
H200 = Gpu(name="NVIDIA H200", compute_capability=(9, 0), total=150_000_000_000, free=149_000_000_000)


def machine(*gpus: Gpu, **facts: Any) -> Surroundings:
    known: dict[str, Any] = {"torch": "2.11.0+cu130", "cuda": "13.0", "driver": "580.159.03", "exllamav3": "1.6.5"}
    sizes = {"cores": 16, "memory_total": 2**37, "memory_free": 2**36, "lockable": None, "disk": None}
    paths = {"nvcc": "/usr/local/cuda/bin/nvcc", "nvcc_cuda": "13.0", "host_compiler": "/usr/bin/g++"}
    return Surroundings(machine=Machine(**{**known, **sizes, **paths, "extension": "missing", "gpus": gpus, **facts}))


def cards_of_reports() -> set[str]:
    """By every report that was kept. One of the CPU engine is no report of a card."""
    found = set()
    for path in (PROJECT / "docs" / "gpu-reports").glob("*.json"):
        told = json.loads(path.read_text())
        assert told["form"] == report.FORM, f"{path.name} is of another form: write it anew, or read both"
        if told["engine"] == "cuda":
            found.add(told["device"][0]["name"])
    return found


def test_the_readme_names_exactly_the_cards_that_the_reports_are_of() -> None:
    section = (PROJECT / "README.md").read_text().partition(SECTION)[2].partition("\n## ")[0]
    sentence = SENTENCE.search(section)
    assert sentence is not None, f"{SECTION} says on which cards it has run: `make test-gpu` has run on no card yet."
    assert set((sentence["cards"] or "").split(", ")) - {""} == cards_of_reports()


def test_a_report_says_what_ran_where_and_with_what(tmp_path: Path) -> None:
    outcomes = {
        "models": Outcome(status="done", seconds=1.5, figures={"mebibytes": 3}),
        "extension": Outcome(status="failed", seconds=9.0, error="nvcc [error]"),
    }
    path = tmp_path / "new" / "report.json"
    report.write(path, report.as_json(machine(H200), outcomes, "cuda", 12.34))
    told = json.loads(path.read_text())
    assert told["device"] == [
        {
            "name": "NVIDIA H200",
            "compute_capability": "9.0",
            "memory_bytes": 150_000_000_000,
            "free_bytes": 149_000_000_000,
        }
    ]
    assert (told["driver"], told["cuda"], told["engine"], told["seconds"]) == ("580.159.03", "13.0", "cuda", 12.3)
    assert set(told["packages"]) >= {"torch", "exllamav3", "triton"}
    assert told["parts"]["extension"] == {"status": "failed", "seconds": 9.0, "figures": {}, "error": "nvcc [error]"}
    assert report.table(outcomes).row_count == 2


def test_the_build_is_for_the_first_card() -> None:
    assert machine(H200).architectures == "9.0"


def test_a_machine_that_cannot_build_is_told_what_it_lacks() -> None:
    missing = machine(H200, nvcc=None, host_compiler=None, exllamav3=None).missing()
    assert [name.split()[0] for name in missing if "Python.h" not in name and "ninja" not in name] == [
        "exllamav3",
        "nvcc,",
        "a",
    ]


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        ({"torch": None, "cuda_error": "No module named 'torch'"}, "No module named 'torch'"),
        ({"cuda": None}, "torch 2.11.0+cu130 is built for CPUs"),
        ({"cuda_error": "driver too old"}, "torch finds no GPU (driver too old)"),
    ],
)
def test_a_machine_without_a_card_is_told_why(facts: dict[str, Any], why: str) -> None:
    assert why in machine(**facts).why_no_card()


def test_without_a_card_nothing_runs_and_nothing_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has a card")
    assert main(["--state", str(tmp_path / "state")]) == 0
    assert capsys.readouterr().out.startswith("No card to check: torch ")
    assert not (tmp_path / "state").exists()


def test_a_result_that_was_cut_short_is_none(tmp_path: Path) -> None:
    kept = Outcomes(tmp_path)
    kept.write("models", Outcome(status="done", figures={"a": [1.5]}))
    assert kept.read("models") == Outcome(status="done", figures={"a": [1.5]})
    kept.path("models").write_bytes(kept.path("models").read_bytes()[:20])
    assert kept.read("models") is None
    assert kept.read("never") is None


@pytest.mark.full
@pytest.mark.model
@pytest.mark.timeout(600)
def test_a_whole_run_on_the_cpu_engine_ends_with_a_report_of_every_part(tmp_path: Path) -> None:
    state = tmp_path / "state"
    assert main(["--engine", "cpu", "--state", str(state), "--seconds", "500"]) == 0
    told = json.loads((state / "report.json").read_text())
    assert told["engine"] == "cpu"
    statuses = {name: part["status"] for name, part in told["parts"].items()}
    assert {name for name, status in statuses.items() if status != "done"} == {
        "extension",
        "llama_conversion",
        "hybrid_conversion",
    }
