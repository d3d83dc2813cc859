"""What every callback that publishes has in common."""

import atexit
from typing import Any
import weakref

import keras

from keras_tfopt.telemetry.history import History
from keras_tfopt.telemetry.session import TelemetrySession
from keras_tfopt.telemetry.session import session_of

_sessions: "weakref.WeakSet[TelemetrySession]" = weakref.WeakSet()


class TelemetryCallback(keras.callbacks.Callback):
    """Takes part in the session of its model.

    Several on one model share one sampler. The methods `handle`, `publish` and
    `close` run in its thread.

    Args:
        interval_seconds: Float. Time between two calls of `publish`.
    """

    def __init__(self, interval_seconds: float) -> None:
        super().__init__()
        if not interval_seconds > 0:
            raise ValueError(
                "Invalid value for argument `interval_seconds`. "
                f"Received: interval_seconds={interval_seconds!r}. "
                "Expected: a positive number."
            )
        self.interval_seconds = interval_seconds
        self._session: TelemetrySession | None = None

    def on_train_begin(self, logs: Any = None) -> None:
        """Joins the session of the model."""
        self._session = session_of(self.model)
        self._session.join(self, self.model)
        _sessions.add(self._session)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Notes that an epoch begins."""
        watch = self._watch()
        if watch is not None:
            watch.begin_epoch()

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Notes that a call of the step function begins."""
        watch = self._watch()
        if watch is not None:
            watch.begin_call(batch)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Notes what a call of the step function did."""
        watch = self._watch()
        if watch is not None:
            watch.end_call(batch, logs or {})

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Notes the logs of an epoch."""
        watch = self._watch()
        if watch is not None:
            watch.end_epoch(epoch, logs or {})

    def on_train_end(self, logs: Any = None) -> None:
        """Leaves the session, which ends with the last one."""
        if self._session is not None:
            self._session.leave(self)

    def get_state(self) -> dict[str, Any]:
        """Returns nothing: what is published is of this process."""
        return {}

    def set_state(self, state: dict[str, Any]) -> None:
        """Puts back what `get_state` returned."""

    def open(self, history: History) -> None:
        """Begins, in the thread of training."""

    def handle(self, records: list[Any]) -> None:
        """Takes what the training thread noted, oldest first."""

    def publish(self, history: History) -> None:
        """Publishes the newest values."""

    def close(self) -> None:
        """Ends, after the last values."""

    def _watch(self) -> Any:
        session = self._session
        return None if session is None else session.watch_for(self)


@atexit.register
def _end_sessions() -> None:
    """Publishes what is left when the process ends."""
    for session in list(_sessions):
        session.end()
