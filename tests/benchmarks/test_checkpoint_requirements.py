"""What the default order has to reach on the delivered traces."""

from __future__ import annotations

from pathlib import Path

import checkpoints as benchmark
import pytest
from checkpoint_study.candidates import DEFAULT, LRU, all_candidates
from checkpoint_study.study import outcomes, requirements

from exllamav3_adapters.policies.prefill_cost import TYPICAL, PrefillCost


@pytest.mark.full
@pytest.mark.parametrize("cost", [TYPICAL, PrefillCost(5.14, 1.0), PrefillCost(488.0, 1.0)], ids=["61", "5", "488"])
def test_the_default_reaches_what_is_required_of_it(traces: Path, cost: PrefillCost) -> None:
    pair = [candidate for candidate in all_candidates() if candidate.name in (LRU, DEFAULT)]
    found = [outcome for case in benchmark.load_cases(traces, cost) for outcome in outcomes(case, pair, lambda _: None)]
    required = requirements(found)
    assert len(required) == 16, "4 and 16 users, 2 placements, 4 numbers of slots"
    assert not [requirement for requirement in required if not requirement.met]
