"""Free memory that is in too many pieces."""

import concurrent.futures
import logging
import time
from typing import Any

import keras

from keras_tfopt.memory.compaction import Compaction
from keras_tfopt.memory.fragmentation import Fragmentation
from keras_tfopt.memory.fragmentation import parse_probe
from keras_tfopt.memory.fragmentation import probe
from keras_tfopt.memory.fragmentation_advice import fragmentation_advice
from keras_tfopt.memory.limit import default_device
from keras_tfopt.plan import check_positive_integer
from keras_tfopt.telemetry.records import Reading
from keras_tfopt.training import guard_of
from keras_tfopt.training import release_guard
from keras_tfopt.training.compaction import CompactionRemedy
from keras_tfopt.training.compaction import compact_model

_logger = logging.getLogger("keras_tfopt")

# A warning is repeated when the ratio has grown by so much.
_WORSE = 0.1


class FragmentationMonitor(keras.callbacks.Callback):
    """Watches how the free memory is split, and can move it together.

    A step may fail although memory is free, when the free memory is in pieces
    and a tensor needs one. The allocator's own figure is read between two
    steps, in some milliseconds, and judged when another thread has parsed it.

    With `on_breach="compact"` weights, slots, state and metrics are moved to
    the host and back, which takes them some tenths of a second per 100 MiB, and
    needs that much memory on the host. A step that ran out of memory in pieces
    is then run again, on models whose step can be guarded. What does not help
    is tried ever more rarely.

    `keras.backend.clear_session` does not help: it forgets names and graphs,
    while variables live as long as the models that own them.

    | Metric | Meaning |
    | --- | --- |
    | `memory_fragmentation_ratio` | 1 - largest free block / free bytes |

    Where a device reports no allocations, or while another profiler session
    runs, there is no reading, and one line in the log says why.

    Example:

    ```python
    import keras
    from keras_tfopt import callbacks

    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    monitor = callbacks.FragmentationMonitor(interval_steps=2)
    x, y = keras.ops.ones((16, 4)), keras.ops.ones((16, 1))
    model.fit(x, y, batch_size=4, callbacks=[monitor], verbose=0)
    if monitor.last_reading is not None:
        print(monitor.last_reading.ratio)
    ```

    Args:
        interval_steps: Integer. Steps between two readings. Defaults to 100.
        max_ratio: Float in (0, 1). Share of the free memory outside of the
            largest free block above which something is done. Defaults to 0.2.
        on_breach: `"warn"` or `"compact"`. Defaults to `"warn"`, which logs
            what helps.
        min_utilization: Float in [0, 1). Nothing is done as long as the peak
            is a smaller share of the limit. Defaults to 0.5.

    Attributes:
        last_reading: `Fragmentation`, or `None` if there is none yet.
        compactions: List of `Compaction`, of those made so far.
        overhead_seconds: Float. Time that training has spent on readings.

    Raises:
        ValueError: If an argument is out of range.
    """

    def __init__(
        self,
        interval_steps: int = 100,
        max_ratio: float = 0.20,
        on_breach: str = "warn",
        *,
        min_utilization: float = 0.5,
    ) -> None:
        super().__init__()
        check_positive_integer("interval_steps", interval_steps)
        if interval_steps is None:
            raise ValueError(
                "Invalid value for argument `interval_steps`. Received: "
                "interval_steps=None. Expected: an integer of at least 1."
            )
        _check_share("max_ratio", max_ratio, 0 < max_ratio < 1, "(0, 1)")
        _check_share(
            "min_utilization", min_utilization, 0 <= min_utilization < 1,
            "[0, 1)",
        )  # fmt: skip
        if on_breach not in ("warn", "compact"):
            raise ValueError(
                "Invalid value for argument `on_breach`. Received: "
                f"on_breach={on_breach!r}. Expected: 'warn' or 'compact'."
            )
        self.interval_steps = interval_steps
        self.max_ratio = max_ratio
        self.on_breach = on_breach
        self.min_utilization = min_utilization
        self.last_reading: Fragmentation | None = None
        self.compactions: list[Compaction] = []
        self.overhead_seconds = 0.0
        self._pending: concurrent.futures.Future | None = None
        self._parser: concurrent.futures.ThreadPoolExecutor | None = None
        self._remedy: CompactionRemedy | None = None
        self._warned_ratio: float | None = None
        self._steps = 0
        self._batch = -1
        self._patience = 1

    def on_train_begin(self, logs: Any = None) -> None:
        """Registers with the guarded step, to compact where a step fails."""
        self._device = default_device()
        self._pending = None
        self._steps, self._batch, self._patience = 0, -1, 1
        if self._parser is None:
            self._parser = concurrent.futures.ThreadPoolExecutor(1)
        if self.on_breach != "compact":
            return
        self._remedy = CompactionRemedy(
            self.model, self.max_ratio, self.compactions.append
        )
        try:
            # Before what makes steps smaller.
            guard_of(self.model).control.register_first(self._remedy)
        except ValueError as error:
            self._remedy = None
            _logger.info("Memory is compacted between steps only: %s", error)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Notes that batches are counted anew."""
        self._batch = -1

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Takes a reading when it is time, and judges the last one."""
        self._steps += batch - self._batch
        self._batch = batch
        start = time.perf_counter()
        self._judge_pending()
        is_due = self._steps >= self.interval_steps * self._patience
        if is_due and self._pending is None:
            self._steps = 0
            self._pending = self._read()
        self.overhead_seconds += time.perf_counter() - start

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Judges a reading that the last steps of the epoch have left."""
        self._judge_pending(wait=True)

    def on_train_end(self, logs: Any = None) -> None:
        """Takes the registration back."""
        if self._remedy is not None:
            release_guard(self.model, "train", self._remedy)
            self._remedy = None
        if self._parser is not None:
            self._parser.shutdown()
            self._parser = None

    def metric_readings(self) -> list[Reading]:
        """Returns the last ratio, for telemetry."""
        reading = self.last_reading
        if reading is None:
            return []
        labels = {"device": self._device}
        return [Reading("memory_fragmentation_ratio", reading.ratio, labels)]

    def _read(self) -> concurrent.futures.Future | None:
        window = probe(self._device)
        if self._parser is None or not window.is_recorded:
            return None
        return self._parser.submit(parse_probe, window, self._device)

    def _judge_pending(self, wait: bool = False) -> None:
        pending = self._pending
        if pending is None or not (wait or pending.done()):
            return
        self._pending = None
        error = pending.exception()
        if error is not None:
            # A monitor must not end a training.
            _logger.info("No reading of the fragmentation: %r", error)
            return
        reading = pending.result()
        if reading is None:
            return
        self.last_reading = reading
        if not self._is_breach(reading):
            self._warned_ratio = None
            self._patience = 1
        elif self.on_breach == "compact":
            self._compact()
        else:
            self._warn(reading)

    def _is_breach(self, reading: Fragmentation) -> bool:
        return (
            reading.ratio > self.max_ratio
            and reading.utilization > self.min_utilization
        )

    def _warn(self, reading: Fragmentation) -> None:
        known = self._warned_ratio
        if known is not None and reading.ratio < known + _WORSE:
            return
        self._warned_ratio = reading.ratio
        _logger.warning(
            "%s: %s. %s",
            self._device,
            reading,
            fragmentation_advice(self._device),
        )

    def _compact(self) -> None:
        compaction = compact_model(self.model, self._device)
        self.compactions.append(compaction)
        after = compaction.after
        if after is not None:
            self.last_reading = after
        has_helped = after is not None and not self._is_breach(after)
        # What holds the free memory apart is none of the model's variables.
        self._patience = 1 if has_helped else 2 * self._patience
        _logger.warning(
            "%s: %s%s",
            self._device,
            compaction,
            "" if has_helped else
            f"; not tried again for {self._patience * self.interval_steps} "
            f"steps. {fragmentation_advice(self._device)}",
        )  # fmt: skip


def _check_share(name: str, value: Any, is_valid: bool, expected: str) -> None:
    if not is_valid:
        raise ValueError(
            f"Invalid value for argument `{name}`. Received: {name}={value!r}. "
            f"Expected: a number in {expected}."
        )
