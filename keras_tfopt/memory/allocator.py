"""What TensorFlow's allocator of a device counts."""

import dataclasses
import functools
import logging
import threading
import weakref

import tensorflow as tf

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class AllocatorStats:
    """What the allocator of one device has handed out.

    These are bytes that tensors occupy, rounded up to the allocator's blocks.
    What the allocator has reserved from the device beyond that is not in them.

    Attributes:
        current_bytes: Integer. Bytes in use now.
        peak_bytes: Integer. Most bytes in use at once since the process
            started or the peak was last reset.
    """

    current_bytes: int
    peak_bytes: int


def read_allocator_stats(device: str = "CPU:0") -> AllocatorStats | None:
    """Reads how many bytes the allocator of a device has handed out.

    A GPU always counts. A CPU counts under oneDNN, or when the process started
    with `TF_CPU_ALLOCATOR_USE_BFC=true`, which gives it the allocator that GPUs
    use. Where nothing is counted, the reading is absent, and one INFO line in
    the log says why.

    The first reading starts TensorFlow's devices, after which their
    configuration is fixed.

    Example:

    ```python
    from keras_tfopt.memory import read_allocator_stats

    stats = read_allocator_stats("CPU:0")
    if stats is not None:
        print(f"{stats.current_bytes} of {stats.peak_bytes} bytes at the peak")
    ```

    Args:
        device: String. Name of a logical device, such as `"GPU:0"` or
            `"/job:worker/replica:0/task:0/device:GPU:0"`. Defaults to
            `"CPU:0"`.

    Returns:
        An `AllocatorStats`, or `None` if the device counts nothing.

    Raises:
        ValueError: If there is no such device.
    """
    try:
        info = tf.config.experimental.get_memory_info(device)
    except ValueError as error:
        _check_device(device)
        _report_absence(device, str(error))
        return None
    return AllocatorStats(info["current"], info["peak"])


def reset_allocator_peak(device: str = "CPU:0") -> AllocatorStats | None:
    """Lets the peak of a device start again from what is in use now.

    Example:

    ```python
    import tensorflow as tf

    from keras_tfopt.memory import read_allocator_stats
    from keras_tfopt.memory import reset_allocator_peak

    before = reset_allocator_peak("CPU:0")
    product = tf.ones((512, 512)) @ tf.ones((512, 512))
    after = read_allocator_stats("CPU:0")
    if before is not None:
        print(f"needed {after.peak_bytes - before.current_bytes} bytes")
    ```

    Args:
        device: String. Name of a logical device. Defaults to `"CPU:0"`.

    Returns:
        The `AllocatorStats` after the reset, or `None` if the device counts
        nothing.

    Raises:
        ValueError: If there is no such device.
    """
    with _lock:
        before = read_allocator_stats(device)
        if before is None:
            return None
        for window in _windows:
            if _short_name(window.device) == _short_name(device):
                window._peak = max(window._peak, before.peak_bytes)
        tf.config.experimental.reset_memory_stats(device)
        return read_allocator_stats(device)


@dataclasses.dataclass(frozen=True)
class PeakReading:
    """What a device had in use since a window was opened.

    Attributes:
        current_bytes: Integer. Bytes in use now.
        peak_bytes: Integer. Most bytes in use at once since then.
        restarts: Integer. How often the window was opened again before.
    """

    current_bytes: int
    peak_bytes: int
    restarts: int


class PeakWindow:
    """The peak of a device since a moment of one's own.

    An allocator has one peak, which `reset_allocator_peak` takes from everybody
    else who follows it; only windows keep theirs. What happens between the
    reading and the reset, less than a microsecond, is seen by none.

    Example:

    ```python
    import tensorflow as tf

    from keras_tfopt.memory import PeakWindow
    from keras_tfopt.memory import reset_allocator_peak

    window = PeakWindow("CPU:0")
    tf.ones((512, 512)) @ tf.ones((512, 512))
    reset_allocator_peak("CPU:0")
    reading = window.read()
    if reading is not None:
        assert reading.peak_bytes - reading.current_bytes >= 2**20
    ```

    Args:
        device: String. Name of a logical device.

    Raises:
        ValueError: If there is no such device.
    """

    def __init__(self, device: str) -> None:
        self.device = device
        self._peak = 0
        self._restarts = -1
        self.restart()
        with _lock:
            _windows.add(self)

    def read(self) -> PeakReading | None:
        """Reads the peak; `None` where the device counts nothing."""
        with _lock:
            stats = read_allocator_stats(self.device)
            if stats is None:
                return None
            self._peak = max(self._peak, stats.peak_bytes)
            return PeakReading(stats.current_bytes, self._peak, self._restarts)

    def restart(self) -> PeakReading | None:
        """Reads the peak and lets it start again from what is in use now."""
        with _lock:
            reading = self.read()
            after = reset_allocator_peak(self.device)
            self._peak = 0 if after is None else after.peak_bytes
            self._restarts += 1
            return reading


_lock = threading.RLock()
_windows: weakref.WeakSet[PeakWindow] = weakref.WeakSet()


def _check_device(device: str) -> None:
    """Raises if TensorFlow does not know a device."""
    known = [known.name for known in tf.config.list_logical_devices()]
    if _short_name(device) not in map(_short_name, known):
        raise ValueError(
            "Invalid value for argument `device`. "
            f"Received: device={device!r}. Expected: one of {known}."
        )


def _short_name(device: str) -> str:
    """Returns the `CPU:0` of `/job:worker/task:0/device:CPU:0`."""
    return device.rpartition("device:")[-1].removeprefix("/")


@functools.cache
def _report_absence(device: str, reason: str) -> None:
    """Logs once per device why it has no statistics."""
    logger.info("No allocator statistics for %s: %s", device, reason)
