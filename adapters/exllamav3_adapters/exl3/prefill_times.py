"""How long prefill takes here: each chunk, measured while it is computed."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import torch

from exllamav3_adapters.policies.prefill_cost import TYPICAL, PrefillCost
from exllamav3_adapters.policies.prefill_cost_fit import PrefillCostFit

_NEW_SAMPLES = 8
"""Between two looks at the fit, which takes milliseconds."""
_NOTICEABLE = math.log(1.1)


class PrefillTimes:
    """Of single chunks: exllamav3 computes those of several jobs one after the other, so nothing runs beside one but
    the machine's other work, whose outliers the fit withstands. Runs on the scheduler's thread.

    `now` gives seconds, after all that was queued before it.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self.now = now
        self._fit = PrefillCostFit()
        self._num_samples = self._num_seen = 0
        self._cost_in_use = TYPICAL

    def add(self, start: int, length: int, seconds: float) -> None:
        """A chunk of `length` tokens from position `start`."""
        self._fit.add(start, length, seconds)
        self._num_samples += 1

    def changed_cost(self) -> PrefillCost | None:
        """What a prefill costs, where that differs by now from what was given out before, in more than its unit."""
        if self._num_samples < self._num_seen + _NEW_SAMPLES:
            return None
        self._num_seen = self._num_samples
        cost = self._fit.cost
        if abs(math.log(_steepness(cost) / _steepness(self._cost_in_use))) < _NOTICEABLE:
            return None
        self._cost_in_use = cost
        return cost

    def counters(self) -> dict[str, float]:
        """D in seconds by thousand tokens, E by million; a prior in no unit while there is no sample."""
        cost, quality = self._fit.cost, self._fit.quality
        counters = {"prefill_cost_d": cost.linear, "prefill_cost_e": cost.quadratic}
        counters["prefill_cost_samples"] = quality.samples
        if quality.relative_error is not None:
            counters["prefill_cost_error"] = quality.relative_error
        return counters


def device_clock(device: Any) -> Callable[[], float]:
    """Seconds at which the device has done what was queued: a GPU computes while the thread goes on."""
    device = torch.device("cpu" if device is None else device)

    def now() -> float:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter()

    return now


def _steepness(cost: PrefillCost) -> float:
    """A prefill of a hundred thousand tokens, in prefills of ten thousand: all that an order can see of the ratio."""
    return cost.between(0, 100_000) / cost.between(0, 10_000)
