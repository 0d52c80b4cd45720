"""What the policy's defaults have to reach on the delivered traces."""

from __future__ import annotations

from pathlib import Path

import pytest
import traces as benchmark
from trace_study.candidates import default_policy, stock_tree
from trace_study.requirements import requirements
from trace_study.study import outcomes


@pytest.mark.full
def test_the_defaults_reach_what_is_required_of_them(traces: Path) -> None:
    pair = [stock_tree(), default_policy()]
    required = [
        requirement
        for case in benchmark.load_cases(traces)
        for outcome in outcomes(case, pair, lambda run: None)
        if outcome.policy == default_policy().name
        for requirement in requirements(outcome)
    ]
    assert len(required) == 25, "24 hit rates and the first requests of 16 users on 4k pages"
    assert not [requirement for requirement in required if not requirement.met]
