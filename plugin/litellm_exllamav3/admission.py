"""Who waits for a model, who is being answered, and when a refused client should come back."""

from __future__ import annotations

from collections import deque

from exllamav3_adapters.errors import QueueFull

SERVICE_TIMES_KEPT = 32
SHORTEST_RETRY_SECONDS = 1.0
LONGEST_RETRY_SECONDS = 600.0


class Admission:
    """Bookkeeping of one model's requests, on the loop. Times are seconds of any one monotonic clock.

    A request waits from `admit` until its engine has started it: while the engine loads, while its chat is rendered
    and while it stands in the engine's own queue. Only those count against `max_waiting`.
    """

    def __init__(self, *, model_key: str, max_waiting: int) -> None:
        self._model_key = model_key
        self._max_waiting = max_waiting
        self._service_seconds: deque[float] = deque(maxlen=SERVICE_TIMES_KEPT)
        self.num_waiting = 0
        self.num_active = 0

    def admit(self, now: float, *, load_seconds_left: float = 0.0) -> Ticket:
        """A place in the queue. `load_seconds_left` is how long the engine still loads, if it does.

        Raises `QueueFull` with an estimate of when a place may be free.
        """
        if self.num_waiting >= self._max_waiting:
            raise QueueFull(
                f"{self.num_waiting} requests already wait for model '{self._model_key}' (max_queue: "
                f"{self._max_waiting}); try again later",
                retry_after_seconds=self.retry_after(load_seconds_left=load_seconds_left),
            )
        return Ticket(self, now)

    def retry_after(self, *, load_seconds_left: float = 0.0) -> float:
        """Seconds until the queue has probably moved by one place.

        `num_active` requests are answered side by side, each in the mean of the recent service times, so one ends
        every mean / num_active seconds.
        """
        seconds = load_seconds_left
        if self._service_seconds:
            mean = sum(self._service_seconds) / len(self._service_seconds)
            seconds += mean / max(1, self.num_active)
        return min(max(seconds, SHORTEST_RETRY_SECONDS), LONGEST_RETRY_SECONDS)

    def _served(self, seconds: float) -> None:
        self._service_seconds.append(seconds)


class Ticket:
    """One request's place: waiting, then active, then gone. `leave` may be called at any time, and again."""

    def __init__(self, admission: Admission, now: float) -> None:
        self._admission = admission
        self._state = "waiting"
        self._since = now
        admission.num_waiting += 1

    @property
    def waiting(self) -> bool:
        return self._state == "waiting"

    def start(self, now: float) -> None:
        """The engine has taken the request out of its queue."""
        if self._state != "waiting":
            return
        self._state = "active"
        self._since = now
        self._admission.num_waiting -= 1
        self._admission.num_active += 1

    def leave(self, now: float) -> None:
        if self._state == "waiting":
            self._admission.num_waiting -= 1
        elif self._state == "active":
            self._admission.num_active -= 1
            self._admission._served(now - self._since)
        self._state = "left"
