"""When two greedy answers count as the same."""

from __future__ import annotations

import pytest
from gpu_check.check import PartFailed
from gpu_check.comparison import ATTENTION, Comparison
from gpu_check.requests import Answer

from exllamav3_adapters.contract import TokenLogprob


def answer(*tokens: tuple[str, float, float]) -> Answer:
    """Tokens with their log probability, and that of the second best."""
    logprobs = [
        TokenLogprob(token=token, logprob=best, top=((token, best), ("other", second)))
        for token, best, second in tokens
    ]
    return Answer(text="".join(token for token, _, _ in tokens), logprobs=logprobs)


COLD = answer((" a", -0.1, -3.0), (" b", -0.5, -0.55), (" c", -0.2, -2.0))


def compared(other: Answer, times: int = 1) -> Comparison:
    found = Comparison(ATTENTION)
    found.add("an equal one", COLD, COLD)
    for _ in range(times):
        found.add("warm", COLD, other)
    return found


def test_the_same_tokens_are_equal() -> None:
    found = compared(COLD)
    found.check()
    assert found.equal == 2


def test_a_token_that_rounding_chose_is_a_near_tie() -> None:
    found = compared(answer((" a", -0.1, -3.0), (" x", -0.5, -0.6), (" y", -0.1, -1.0)))
    found.check()
    assert (found.equal, found.near_ties) == (1, 1)


def test_a_token_that_rounding_cannot_have_chosen_is_a_fault() -> None:
    with pytest.raises(PartFailed, match=r"warm: another token at 2, where the best two are 1\.800 nats apart"):
        compared(answer((" a", -0.1, -3.0), (" b", -0.5, -0.55), (" x", -0.2, -2.0))).check()


def test_so_is_an_answer_that_ends_early() -> None:
    with pytest.raises(PartFailed, match="warm: 2 tokens instead of 3"):
        compared(answer((" a", -0.1, -3.0), (" b", -0.5, -0.55))).check()


def test_so_are_probabilities_far_from_the_cold_ones() -> None:
    with pytest.raises(PartFailed, match=r"up to 0\.900 nats"):
        compared(answer((" a", -1.0, -3.0), (" b", -0.5, -0.55), (" c", -0.2, -2.0))).check()


def test_answers_that_mostly_part_are_no_accident() -> None:
    with pytest.raises(PartFailed, match="2 of 3 answers part"):
        compared(answer((" a", -0.1, -3.0), (" x", -0.5, -0.6)), times=2).check()
