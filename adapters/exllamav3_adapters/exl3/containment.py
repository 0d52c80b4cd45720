"""Which faults end with their job, which end the engine, and what those who wait are told."""

from __future__ import annotations

import logging
from typing import Any

from exllamav3.constants import PAGE_SIZE
from exllamav3.generator.job import NonFiniteLogits

from exllamav3_adapters.errors import EngineDied, EngineError, JobFailed
from exllamav3_adapters.exl3.device_faults import Reach, Sizes, device_fault, place_of, release_memory
from exllamav3_adapters.exl3.results import failure_of

log = logging.getLogger(__name__)

_AGAIN = "try again once it is back"


class Containment:
    """Of one generator. exllamav3 hands what a job's prefill raises to that job alone, whatever it was: after an
    illegal access each request would fail so, one by one, and the process never be replaced. Runs on the scheduler's
    thread."""

    def __init__(self, generator: Any) -> None:
        self._generator = generator
        self._is_tensor_parallel = bool(getattr(generator.model, "loaded_tp", False))

    def check(self, error: Exception) -> None:
        """Raises `error` again where it ends the engine."""
        fault = device_fault(error, tensor_parallel=self._is_tensor_parallel)
        if fault is not None and fault.reach is Reach.DEVICE:
            raise error

    def job_failure(self, error: Exception) -> EngineError:
        """What the reader of a job is told that met `error`. Raises it again where it is not that job's alone."""
        if isinstance(error, NonFiniteLogits):  # its own text quotes the request
            return JobFailed(
                "the model's output for this request is not finite (NaN or infinity), so no token can be chosen; what "
                "the cache held of its prompt was dropped. If it happens again, a kernel or the model's files are at "
                "fault"
            )
        self.check(error)
        fault = device_fault(error, tensor_parallel=self._is_tensor_parallel)
        if fault is None or fault.reach is Reach.LAUNCH:
            return failure_of(error)
        release_memory(error)
        log.warning("a job ran out of memory (%s); %s", fault.reason, self._remedy())
        return JobFailed(
            f"this request ran out of memory beside the others ({fault.reason}); try again when fewer run, or "
            f"{self._remedy()}; other requests go on"
        )

    def end_reason(self, error: Exception) -> EngineDied:
        """What is said of an engine that `error` ended. Of an error that is not the device's only the place."""
        fault = device_fault(error, tensor_parallel=self._is_tensor_parallel)
        if fault is None:
            return EngineDied(f"the engine's scheduler broke ({place_of(error)}); {_AGAIN}")
        if fault.reach is Reach.MEMORY:
            return EngineDied(
                f"the engine ran out of memory in a step of all requests ({fault.reason}); {_AGAIN}, and if it happens "
                f"then, {self._remedy()}"
            )
        return EngineDied(f"the engine's device failed ({fault.reason}); {_AGAIN}")

    def _remedy(self) -> str:
        return Sizes.of(self._generator, PAGE_SIZE).remedy()
