"""Memory that is about to run out, seen before it does."""

import collections
from collections.abc import Callable
import logging
from typing import Any

import keras

from keras_tfopt.memory.breaches import HOST
from keras_tfopt.memory.breaches import BreachJudge
from keras_tfopt.memory.breaches import MemoryBreach
from keras_tfopt.memory.limit import compute_devices
from keras_tfopt.memory.limit import default_device
from keras_tfopt.memory.periodic_thread import PeriodicThread
from keras_tfopt.memory.readings import MemoryReader
from keras_tfopt.memory.readings import MemoryReading
from keras_tfopt.memory.swap import SwapManager
from keras_tfopt.memory.swap_brake import SwapBrake
from keras_tfopt.memory.swap_counters import SwapCounters
from keras_tfopt.plan import ExecutionPlan
from keras_tfopt.plan import PlanEvent
from keras_tfopt.plan import check_positive_integer
from keras_tfopt.telemetry.records import Reading
from keras_tfopt.training import guard_of
from keras_tfopt.training import release_guard
from keras_tfopt.training.checks import check_splittable
from keras_tfopt.training.fit_watch import FitWatch
from keras_tfopt.training.memory_pressure import MemoryPressure
from keras_tfopt.training.plan_control import PlanControl

_logger = logging.getLogger("keras_tfopt")
_MIB = 2**20


class MemoryWatchdog(keras.callbacks.Callback):
    """Watches memory during `fit`, and acts before it runs out.

    A thread reads the memory of devices and host every few seconds. Where the
    peak since the last reading exceeds a share of the limit, it warns, once per
    breach. With `on_breach="shrink"` the micro-batch is also halved, between
    two steps, which leaves the result as it is: an out-of-memory error costs 10
    to 20 seconds, and a host that runs out of memory kills the process without
    one. The peak of a single step that is much larger than those before it
    cannot be foreseen; `OOMRecovery` goes on after it.

    | Reading | Metric |
    | --- | --- |
    | `devices[i].allocated_bytes` | `memory_allocated_bytes{device}` |
    | `devices[i].peak_bytes` | `memory_allocated_peak_bytes{device}` |
    | `devices[i].driver.used_bytes` | `memory_device_used_bytes{device}` |
    | `devices[i].limit_bytes` | `memory_limit_bytes{device}` |
    | `devices[i].utilization_ratio` | `memory_utilization_ratio{device}` |
    | `host.rss_bytes` | `host_memory_rss_bytes` |
    | `swap_manager.counters.swaps` | `memory_swaps_total{direction}` |
    | `swap_manager.counters.bytes` | `memory_swapped_bytes_total{direction}` |
    | `swap_manager.counters.hit_ratio` | `offload_hit_ratio` |

    TensorFlow's and the driver's figures never agree: the driver also counts
    CUDA itself and other processes. Utilization is TensorFlow's. What cannot be
    read is `None`, and the log says once why: a CPU counts only with
    `TF_CPU_ALLOCATOR_USE_BFC=true` or oneDNN, and is limited only by
    `TF_CPU_BFC_MEM_LIMIT_IN_MB`.

    Example:

    ```python
    import keras
    from keras_tfopt import callbacks

    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    watchdog = callbacks.MemoryWatchdog(max_utilization=0.85)
    x, y = keras.ops.ones((16, 4)), keras.ops.ones((16, 1))
    model.fit(x, y, callbacks=[watchdog], verbose=0)
    print(watchdog.readings[-1].host.rss_bytes)
    ```

    Args:
        max_utilization: Float in (0, 1]. Share of a device's limit above which
            its peak is a breach. Defaults to 0.85.
        interval_seconds: Float. Time between two readings. Defaults to 5.
        on_breach: `"warn"` or `"shrink"`. Defaults to `"warn"`.
        min_microbatch_size: Integer. Smallest micro-batch to shrink to.
            Defaults to 1.
        max_host_utilization: Float in (0, 1]. Share of the host's memory, or of
            the limit of the control group, above which what the process has in
            memory is a breach. Defaults to 0.9.
        hysteresis: Float. How far utilization must fall below its threshold
            before another warning. Defaults to 0.05.
        cooldown_seconds: Float. Least time between two warnings about the same
            memory. Defaults to 300.
        swap_manager: `SwapManager` or `None`. Brings back only what a step uses
            while a device is above `max_utilization`, and goes on when that has
            fallen by `hysteresis`. Telemetry gets its metrics. Defaults to
            `None`.
        limit_bytes: Integer or `None`. What utilization is a share of. Defaults
            to the limit of the device.
        max_readings: Integer. How many readings and breaches are kept. Defaults
            to 1000.
        on_reading: Callable or `None`. Gets each `MemoryReading`, in the
            thread that reads. Defaults to `None`.

    Attributes:
        readings: Tuple of `MemoryReading`, oldest first.
        breaches: Tuple of `MemoryBreach`, oldest first.

    Raises:
        ValueError: If an argument is out of range; in `fit`, with
            `on_breach="shrink"`, if the model cannot be split or the device
            does not count or has no limit.
    """

    def __init__(
        self,
        max_utilization: float = 0.85,
        interval_seconds: float = 5.0,
        *,
        on_breach: str = "warn",
        min_microbatch_size: int = 1,
        max_host_utilization: float = 0.9,
        hysteresis: float = 0.05,
        cooldown_seconds: float = 300.0,
        swap_manager: SwapManager | None = None,
        limit_bytes: int | None = None,
        max_readings: int = 1000,
        on_reading: Callable[[MemoryReading], None] | None = None,
    ) -> None:
        super().__init__()
        _check_share("max_utilization", max_utilization)
        _check_share("max_host_utilization", max_host_utilization)
        _check_numbers(
            interval_seconds=interval_seconds,
            hysteresis=hysteresis,
            cooldown_seconds=cooldown_seconds,
        )
        if on_breach not in ("warn", "shrink"):
            raise ValueError(
                "Invalid value for argument `on_breach`. Received: "
                f"on_breach={on_breach!r}. Expected: 'warn' or 'shrink'."
            )
        for name, value in (
            ("min_microbatch_size", min_microbatch_size),
            ("max_readings", max_readings),
        ):
            # `None` passes as unset.
            check_positive_integer(name, 0 if value is None else value)
        check_positive_integer("limit_bytes", limit_bytes)
        self.max_utilization = max_utilization
        self.interval_seconds = interval_seconds
        self.on_breach = on_breach
        self.min_microbatch_size = min_microbatch_size
        self.max_host_utilization = max_host_utilization
        self.hysteresis = hysteresis
        self.cooldown_seconds = cooldown_seconds
        self.swap_manager = swap_manager
        self._brake = (
            None
            if swap_manager is None
            else SwapBrake(swap_manager, max_utilization, hysteresis)
        )
        self.limit_bytes = limit_bytes
        self.on_reading = on_reading
        self._readings: collections.deque[MemoryReading] = collections.deque(
            maxlen=max_readings
        )
        self._breaches: collections.deque[MemoryBreach] = collections.deque(
            maxlen=max_readings
        )
        self._judge: BreachJudge | None = None
        self._reader: Any = None
        self._thread: PeriodicThread | None = None
        self._pressure: MemoryPressure | None = None
        self._control: PlanControl | None = None
        self._step = 0
        self._steps_before = 0

    @property
    def readings(self) -> tuple[MemoryReading, ...]:
        """The last readings, oldest first."""
        return tuple(self._readings)

    def metric_readings(self) -> list[Reading]:
        """Returns what driver and swaps said last, for telemetry."""
        swapped = []
        if self.swap_manager is not None:
            swapped = _swap_readings(self.swap_manager.counters)
        if not self._readings:
            return swapped
        return swapped + [
            Reading(
                "memory_device_used_bytes",
                device.driver.used_bytes,
                {"device": device.device},
            )
            for device in self._readings[-1].devices
            if device.driver is not None
        ]

    @property
    def breaches(self) -> tuple[MemoryBreach, ...]:
        """The last breaches that were warned about, oldest first."""
        return tuple(self._breaches)

    @property
    def plan_events(self) -> tuple[PlanEvent, ...]:
        """Changes of the plan of the model so far, by whoever made them."""
        return () if self._control is None else self._control.plan_events

    def get_state(self) -> None:
        """Returns nothing: a restored run has other memory."""

    def set_state(self, state: None) -> None:
        """Starts anew."""

    def on_train_begin(self, logs: Any = None) -> None:
        """Starts to watch.

        Raises:
            ValueError: With `on_breach="shrink"`, if the model cannot be split
                or the device does not count or has no limit.
        """
        self._stop()
        self._step = self._steps_before = 0
        self._judge = BreachJudge(
            self.max_utilization,
            self.max_host_utilization,
            self.hysteresis,
            self.cooldown_seconds,
        )
        self._reader = MemoryReader(compute_devices(), self.limit_bytes)
        try:
            if self.on_breach == "shrink":
                self._register()
            self._start()
        except BaseException:
            self._close()
            raise

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Notes how far training is, for the readings."""
        self._step = self._steps_before + batch + 1

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Notes how far training is."""
        self._steps_before = self._step

    def on_train_end(self, logs: Any = None) -> None:
        """Ends with a last reading."""
        self._stop()
        if self._pressure is not None:
            release_guard(self.model, "train", self._pressure)

    def _start(self) -> None:
        self._thread = PeriodicThread(
            self._watch,
            self.interval_seconds,
            FitWatch().is_running,
            type(self).__name__,
            self._close,
        )
        self._thread.start()

    def _stop(self) -> None:
        if self._thread is not None:
            self._thread.stop()
            self._thread = None

    def _close(self) -> None:
        self._reader.close()
        if self._brake is not None:
            self._brake.release()

    def _register(self) -> None:
        """Registers what shrinks the micro-batch with the guarded step."""
        check_splittable(self.model, ExecutionPlan(microbatch_size=1))
        device = default_device()
        window = self._reader.windows[device]
        limit = self._reader.limits[device]
        if limit is None or window.read() is None:
            raise ValueError(
                "`on_breach='shrink'` compares the allocator's peak with its "
                f"limit. Received: limit_bytes={self.limit_bytes} on {device}, "
                "which does not have both. Expected: a GPU; on a CPU, "
                "TF_CPU_ALLOCATOR_USE_BFC=true and TF_CPU_BFC_MEM_LIMIT_IN_MB "
                "in the environment before TensorFlow starts."
            )
        self._pressure = MemoryPressure(
            window, limit, self.max_utilization, self.min_microbatch_size
        )
        self._control = guard_of(self.model).control
        self._control.register(self._pressure)

    def _watch(self) -> None:
        """Reads once, judges, and passes the reading on; in the thread."""
        reading = self._reader.read(self._step)
        self._readings.append(reading)
        if self._pressure is not None:
            for device in reading.devices:
                self._pressure.report(device)
        if self._brake is not None:
            self._brake.update(reading)
        for breach in self._judge.judge(reading) if self._judge else ():
            self._breaches.append(breach)
            self._warn(breach)
        if self.on_reading is not None:
            self.on_reading(reading)

    def _warn(self, breach: MemoryBreach) -> None:
        _logger.warning(
            "Memory of %s is %.0f %% full at step %d, of %.0f MiB. %s",
            breach.device,
            100 * breach.utilization_ratio,
            breach.step,
            breach.limit_bytes / _MIB,
            _ADVICE[HOST if breach.device == HOST else self.on_breach],
        )


def _swap_readings(counters: SwapCounters) -> list[Reading]:
    totals = {
        "memory_swaps_total": counters.swaps,
        "memory_swapped_bytes_total": counters.bytes,
    }
    return [
        Reading("offload_hit_ratio", counters.hit_ratio),
        *(
            Reading(name, value, {"direction": direction})
            for name, values in totals.items()
            for direction, value in values.items()
        ),
    ]


_ADVICE = {
    HOST: "Above the limit the kernel kills the process: keep less data in "
    "memory, and shorter buffers and fewer workers in the input pipeline.",
    "warn": "Smaller micro-batches need less: see `microbatch_size`, or "
    "`on_breach='shrink'`.",
    "shrink": "The micro-batch shrinks after the next step.",
}


def _check_share(name: str, value: float) -> None:
    if not 0 < value <= 1:
        raise ValueError(
            f"Invalid value for argument `{name}`. Received: {name}={value!r}. "
            "Expected: a share of the limit, in (0, 1]."
        )


def _check_numbers(**values: float) -> None:
    for name, value in values.items():
        # A NaN is not in range either.
        if not (value > 0 or (value == 0 and name != "interval_seconds")):
            raise ValueError(
                f"Invalid value for argument `{name}`. "
                f"Received: {name}={value!r}. Expected: a number "
                f"{'above' if name == 'interval_seconds' else 'not below'} 0."
            )
