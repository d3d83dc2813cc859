"""Memory that grows from epoch to epoch."""

import collections
from collections.abc import Callable
import dataclasses
import logging
from typing import Any

import keras

from keras_tfopt import _compat
from keras_tfopt.memory.allocator import read_allocator_stats
from keras_tfopt.memory.host import read_host_memory
from keras_tfopt.memory.leak_slope import LeakSlope
from keras_tfopt.memory.leak_slope import leak_slope
from keras_tfopt.memory.limit import compute_devices
from keras_tfopt.memory.limit import device_limit_bytes
from keras_tfopt.plan import check_positive_integer
from keras_tfopt.telemetry.records import Reading
from keras_tfopt.training.allocation_sites import AllocationSites

_logger = logging.getLogger("keras_tfopt")
_MIB = 2**20

# What is too much per epoch where no limit is known.
_DEFAULT_BYTES = 16 * _MIB

# Older epochs say little about what happens now.
_MAX_EPOCHS = 60

_HOST = "host"


@dataclasses.dataclass(frozen=True)
class MemoryLeak:
    """Memory that was seen to grow steadily.

    Attributes:
        device: String. Name of a logical device, or `"host"`.
        epoch: Integer. The epoch after which it was seen.
        bytes_per_epoch: Float.
        functions_per_epoch: Float. How many more functions TensorFlow holds
            after each epoch; 0 unless their number grows as steadily.
        sites: Tuple of strings. Lines of Python whose memory has grown most,
            where allocations were traced.
    """

    device: str
    epoch: int
    bytes_per_epoch: float
    functions_per_epoch: float
    sites: tuple[str, ...]


class LeakDetector(keras.callbacks.Callback):
    """Finds memory that grows from epoch to epoch, on devices and the host.

    What is in use at the ends of epochs is compared by a slope that single
    epochs do not change. Warm-up, noise, garbage that is collected now and
    then, and one or two jumps give no alarm. A run that leaks slowly dies after
    days, and on the host without an exception.

    Beside it stands the number of functions that TensorFlow holds: each time a
    `tf.function` is traced again it grows, mostly for Python numbers or new
    shapes as arguments, and takes memory of the host.

    | Attribute | Metric |
    | --- | --- |
    | `slopes[d].bytes_per_epoch` | `memory_leak_bytes_per_epoch{device}` |

    Example:

    ```python
    import keras
    from keras_tfopt import callbacks

    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    detector = callbacks.LeakDetector()
    x, y = keras.ops.ones((16, 4)), keras.ops.ones((16, 1))
    model.fit(x, y, epochs=8, callbacks=[detector], verbose=0)
    assert detector.leaks == ()
    ```

    Args:
        max_ratio_per_epoch: Float. Growth per epoch that is all right, as a
            share of the limit of the device or the host. Defaults to 0.005.
        max_bytes_per_epoch: Integer or `None`. The same in bytes, in place of
            the share. Defaults to `None`; where no limit is known, this means
            16 MiB.
        skip_epochs: Integer. First epochs to leave out, in which memory fills
            up. Defaults to 2.
        min_epochs: Integer, at least 5. Epochs to look at before saying
            anything. Defaults to 5.
        trace_allocations: Boolean. Whether to trace what Python allocates, to
            name the lines of code. Slows Python down. Defaults to `False`.
        on_leak: Callable or `None`. Gets each `MemoryLeak`, on the thread of
            `fit`. Defaults to `None`.

    Attributes:
        leaks: Tuple of `MemoryLeak`, oldest first; one each time that memory
            begins to grow.
        slopes: Dict from `"host"` and names of devices to the last `LeakSlope`.

    Raises:
        ValueError: If an argument is out of range.
    """

    def __init__(
        self,
        max_ratio_per_epoch: float = 0.005,
        *,
        max_bytes_per_epoch: int | None = None,
        skip_epochs: int = 2,
        min_epochs: int = 5,
        trace_allocations: bool = False,
        on_leak: Callable[[MemoryLeak], None] | None = None,
    ) -> None:
        super().__init__()
        _check_at_least("max_ratio_per_epoch", max_ratio_per_epoch, 0)
        _check_at_least("skip_epochs", skip_epochs, 0)
        _check_at_least("min_epochs", min_epochs, 5)
        check_positive_integer("max_bytes_per_epoch", max_bytes_per_epoch)
        self.max_ratio_per_epoch = max_ratio_per_epoch
        self.max_bytes_per_epoch = max_bytes_per_epoch
        self.skip_epochs = skip_epochs
        self.min_epochs = min_epochs
        self.on_leak = on_leak
        self.leaks: tuple[MemoryLeak, ...] = ()
        self.slopes: dict[str, LeakSlope] = {}
        self._sites = AllocationSites() if trace_allocations else None
        self._limits: dict[str, int | None] = {}
        self._start_anew()

    def get_state(self) -> None:
        """Returns nothing: a restored run has other memory."""

    def set_state(self, state: None) -> None:
        """Starts anew."""

    def metric_readings(self) -> list[Reading]:
        """Returns the growth of what keeps growing, for telemetry."""
        return [
            Reading(
                "memory_leak_bytes_per_epoch",
                slope.bytes_per_epoch if slope.is_growing else None,
                {"device": device},
            )
            for device, slope in list(self.slopes.items())
        ]

    def on_train_begin(self, logs: Any = None) -> None:
        """Starts to look."""
        self._limits = {d: device_limit_bytes(d) for d in compute_devices()}
        self._start_anew()
        if self._sites is not None:
            self._sites.start()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Looks at what is in use, and warns where it keeps growing."""
        self._seen_epochs += 1
        if self._seen_epochs <= self.skip_epochs:
            return
        if self._sites is not None:
            self._sites.remember()
        self._functions.append(_compat.held_functions())
        for device, (size, limit) in self._read().items():
            if size is not None:
                self._judge(device, epoch, size, limit)

    def on_train_end(self, logs: Any = None) -> None:
        """Ends the tracing of allocations."""
        if self._sites is not None:
            self._sites.stop()

    def _start_anew(self) -> None:
        self._seen_epochs = 0
        self._leaking: set[str] = set()
        self._functions: collections.deque = collections.deque(
            maxlen=_MAX_EPOCHS
        )
        self._sizes: dict[str, collections.deque] = collections.defaultdict(
            lambda: collections.deque(maxlen=_MAX_EPOCHS)
        )

    def _read(self) -> dict[str, tuple[int | None, int | None]]:
        """Returns what is in use, and the limit, of devices and host."""
        host = read_host_memory()
        sizes = {_HOST: (host.rss_bytes, host.limit_bytes)}
        for device, limit in self._limits.items():
            stats = read_allocator_stats(device)
            sizes[device] = (
                None if stats is None else stats.current_bytes,
                limit,
            )
        return sizes

    def _judge(
        self, device: str, epoch: int, size: int, limit: int | None
    ) -> None:
        sizes = self._sizes[device]
        sizes.append(size)
        slope = leak_slope(sizes, self.min_epochs)
        if slope is None:
            return
        self.slopes[device] = slope
        is_leaking = slope.is_growing and (
            slope.bytes_per_epoch > self._allowed(limit)
        )
        if is_leaking and device not in self._leaking:
            self._report(device, epoch, slope.bytes_per_epoch)
        (self._leaking.add if is_leaking else self._leaking.discard)(device)

    def _allowed(self, limit: int | None) -> float:
        if self.max_bytes_per_epoch is not None:
            return self.max_bytes_per_epoch
        if limit is None:
            return _DEFAULT_BYTES
        return self.max_ratio_per_epoch * limit

    def _report(self, device: str, epoch: int, bytes_per_epoch: float) -> None:
        functions = leak_slope(self._functions, self.min_epochs)
        is_retracing = functions is not None and functions.is_growing
        leak = MemoryLeak(
            device,
            epoch,
            bytes_per_epoch,
            functions.bytes_per_epoch if functions and is_retracing else 0.0,
            self._sites.grown() if self._sites is not None else (),
        )
        self.leaks += (leak,)
        _logger.warning("%s", describe_leak(leak))
        if self.on_leak is not None:
            self.on_leak(leak)


def describe_leak(leak: MemoryLeak) -> str:
    """Returns a leak, and what is known of its cause, in words.

    Args:
        leak: `MemoryLeak`.
    """
    lines = [
        f"Memory of {leak.device} grows by "
        f"{leak.bytes_per_epoch / _MIB:.1f} MiB per epoch, seen after epoch "
        f"{leak.epoch}."
    ]
    if leak.functions_per_epoch:
        lines.append(
            "So does the number of functions that TensorFlow holds, by "
            f"{leak.functions_per_epoch:.0f} per epoch: a `tf.function` is "
            "traced again and again. Look for one that is made inside of a "
            "loop, or called with Python numbers or new shapes."
        )
    elif leak.device != _HOST:
        lines.append("Look for tensors that a list or a callback keeps.")
    lines += [f"Grown: {site}" for site in leak.sites]
    return "\n".join(lines)


def _check_at_least(name: str, value: Any, smallest: int) -> None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    # A NaN is not at least anything.
    if not is_number or not value >= smallest:
        raise ValueError(
            f"Invalid value for argument `{name}`. Received: {name}={value!r}. "
            f"Expected: a number of at least {smallest}."
        )
