"""Those who publish, and that none of them hurts training or the others."""

from collections.abc import Callable
import functools
import logging
import time
from typing import Any
from typing import Protocol

from keras_tfopt.telemetry.history import History

_logger = logging.getLogger("keras_tfopt")


class Publisher(Protocol):
    """Shows what the sampler finds, in the sampler's thread.

    Attributes:
        interval_seconds: Float. Time between two calls of `publish`.
    """

    interval_seconds: float

    def open(self, history: History) -> None:
        """Begins, in the thread of training."""

    def handle(self, records: list[Any]) -> None:
        """Takes what the training thread noted, oldest first."""

    def publish(self, history: History) -> None:
        """Publishes the newest values."""

    def close(self) -> None:
        """Ends, after the last values."""


class PublisherGroup:
    """Calls publishers, each in its own time, and holds their errors back."""

    def __init__(self) -> None:
        self._publishers: list[Publisher] = []
        self._done: list[Publisher] = []
        self._next: dict[int, float] = {}
        self._failing: set[int] = set()

    def add(self, publisher: Publisher, history: History) -> None:
        """Opens a publisher.

        Args:
            publisher: `Publisher`.
            history: `History` that it publishes from.
        """
        if publisher not in self._publishers:
            self._guard(publisher, functools.partial(publisher.open, history))
            self._publishers.append(publisher)

    def mark_done(self, publisher: Publisher) -> bool:
        """Notes that a publisher ends; returns whether all do."""
        self._done.append(publisher)
        return all(p in self._done for p in self._publishers)

    def handle(self, records: list[Any]) -> None:
        """Shows records to all publishers."""
        for publisher in list(self._publishers):
            self._guard(publisher, functools.partial(publisher.handle, records))

    def publish(self, history: History, is_last: bool) -> None:
        """Lets those publish whose time has come.

        Args:
            history: `History`.
            is_last: Boolean. Whether it is everybody's time.
        """
        now = time.monotonic()
        for publisher in list(self._publishers):
            if is_last or now >= self._next.get(id(publisher), 0.0):
                self._next[id(publisher)] = now + publisher.interval_seconds
                self._guard(
                    publisher, functools.partial(publisher.publish, history)
                )

    def close(self) -> None:
        """Closes all publishers and lets go of them."""
        for publisher in self._publishers:
            self._guard(publisher, publisher.close)
        self._publishers = []
        self._done = []

    def _guard(self, publisher: Publisher, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:
            # Said once, however long a disk stays full.
            if id(publisher) not in self._failing:
                self._failing.add(id(publisher))
                _logger.warning(
                    "%s fails, and training goes on: %s: %s",
                    type(publisher).__name__,
                    type(error).__name__,
                    error,
                )
