"""What is noted on the training thread: clocks, numbers, nothing else."""

from collections.abc import Callable
from collections.abc import Mapping
import time
from typing import Any

import keras

from keras_tfopt import _compat
from keras_tfopt.telemetry.records import CallRecord
from keras_tfopt.telemetry.records import EpochEnd
from keras_tfopt.telemetry.row_counter import RowCounter
from keras_tfopt.telemetry.step_listener import StepListener

# To read a variable takes as long as all other notes of a step.
_READ_SECONDS = 0.5


class StepWatch:
    """Turns the hooks of Keras into records.

    Args:
        model: The model in `fit`.
        rows: `RowCounter` of its data.
        steps_per_epoch: Integer or `None`.
        put: Callable that takes a record.

    Attributes:
        updates: Integer. Optimizer updates so far, when last asked.
    """

    def __init__(
        self,
        model: keras.Model,
        rows: RowCounter,
        steps_per_epoch: int | None,
        put: Callable[[Any], None],
    ) -> None:
        self._model = model
        self._row_counter = rows
        self._steps_per_epoch = steps_per_epoch
        self._put = put
        self._listener = StepListener(put)
        # Plans may change before the first step.
        self._listener.follow(model.train_function)
        self._first_batch = 0
        self._batches = 0
        self._is_first = True
        self._start = self._last_end = time.perf_counter()
        self._last_read = 0.0
        self._last_wait = 0.0
        self._last_count = 0.0
        self._hook_seconds = 0.0
        self.updates = self._read_updates()

    def begin_epoch(self) -> None:
        """Notes that all means begin anew."""
        self._listener.follow(self._model.train_function)
        self._is_first = True

    def begin_call(self, first_batch: int) -> None:
        """Notes when a call of the step function begins."""
        start = time.perf_counter()
        self._listener.follow(self._model.train_function)
        self._first_batch = first_batch
        if self._is_first:
            # What came before was not the loop over the data.
            self._last_end = start
            self._last_wait = self._listener.wait_seconds or 0.0
            # A run that is restored inside of an epoch has rows behind it.
            self._last_count = self._read_count()
        self._start = time.perf_counter()
        self._hook_seconds += self._start - start

    def end_call(self, last_batch: int, logs: Mapping[str, Any]) -> None:
        """Notes what a call of the step function did."""
        end = time.perf_counter()
        if self._steps_per_epoch is not None:
            # Keras counts calls as if all were of the same number of batches.
            last_batch = min(last_batch, self._steps_per_epoch - 1)
        self._batches += last_batch - self._first_batch + 1
        is_due = self._is_due(end, last_batch)
        steps, rows = self._count(last_batch, is_due)
        wait = self._listener.wait_seconds
        if is_due:
            self._last_read = end
            self.updates = self._read_updates()
        self._put(
            CallRecord(
                time.time(),
                end - self._start,
                end - self._last_end,
                steps,
                rows,
                None if wait is None else wait - self._last_wait,
                logs.get("loss"),
                self._is_first,
                self._first_batch,
                self.updates if is_due else None,
                self._listener.plan,
                self._listener.batch_rows,
                self._hook_seconds + self._listener.cost_seconds,
            )
        )
        self._is_first = False
        self._last_end = end
        self._last_wait = wait or 0.0
        # Told with the next call.
        self._listener.cost_seconds = 0.0
        self._hook_seconds = time.perf_counter() - end

    def end_epoch(self, epoch: int, logs: Mapping[str, Any]) -> None:
        """Notes the logs of an epoch."""
        self._put_flushed(logs)
        self.updates = self._read_updates()
        numbers = {
            name: float(value)
            for name, value in logs.items()
            if isinstance(value, (int, float))
        }
        self._put(EpochEnd(time.time(), epoch, self.updates, numbers))

    def end(self) -> None:
        """Stops to listen."""
        self._listener.leave()

    def _put_flushed(self, logs: Mapping[str, Any]) -> None:
        """Notes the update of what was gathered, which ends an epoch."""
        steps, rows, seconds = self._listener.take()
        if steps:
            self._put(
                CallRecord(
                    time.time(),
                    seconds,
                    0.0,
                    steps,
                    rows,
                    0.0,
                    logs.get("loss"),
                    False,
                    self._first_batch,
                    None,
                    self._listener.plan,
                    self._listener.batch_rows,
                    0.0,
                )
            )

    def _is_due(self, now: float, last_batch: int) -> bool:
        """Whether variables may be read after this call."""
        if now - self._last_read > _READ_SECONDS:
            return True
        steps = self._steps_per_epoch
        if steps is None:
            return last_batch > self._first_batch
        return last_batch + 1 >= steps

    def _count(self, last_batch: int, is_due: bool) -> tuple[int, int | None]:
        """Returns updates and rows of the call that ended."""
        if self._listener.reports:
            return self._listener.take()[:2]
        batches = last_batch - self._first_batch + 1
        if batches > 1 and self._steps_per_epoch is None:
            # The data may have ended inside of the call.
            batches = self._read_updates() - self.updates or batches
        if self._row_counter.is_known:
            return batches, self._row_counter.rows(
                self._first_batch, last_batch
            )
        if not is_due:
            return batches, 0
        count = self._read_count()
        rows, self._last_count = int(count - self._last_count), count
        return batches, rows or None

    def _read_count(self) -> float:
        """Asks the metric behind the loss, which Keras weights by rows."""
        if self._listener.reports or self._row_counter.is_known:
            return 0.0
        return float(_compat.loss_trackers(self._model)[0].count.numpy())

    def _read_updates(self) -> int:
        optimizer = self._model.optimizer
        if optimizer is None:
            return self._batches
        # What replicas mirror is no number.
        return int(optimizer.iterations.numpy())
