"""What all readers together say about memory at one moment."""

from collections.abc import Sequence
import dataclasses
import time

from keras_tfopt.memory.absence import report_absence
from keras_tfopt.memory.allocator import PeakWindow
from keras_tfopt.memory.device_gpus import gpus_of_devices
from keras_tfopt.memory.driver import Driver
from keras_tfopt.memory.driver_reading import DriverReading
from keras_tfopt.memory.host import HostMemory
from keras_tfopt.memory.host import read_host_memory
from keras_tfopt.memory.limit import device_limit_bytes


@dataclasses.dataclass(frozen=True)
class DeviceReading:
    """Memory of one device.

    Attributes:
        device: String. Name of the logical device, such as `"GPU:0"`.
        allocated_bytes: Integer or `None`. What TensorFlow's allocator has
            handed out.
        peak_bytes: Integer or `None`. The most of it at once since the reading
            before.
        limit_bytes: Integer or `None`. What the allocator may hand out.
        driver: `DriverReading` or `None`. What the driver says.
        window: Integer or `None`. How often the peak was started again before.
    """

    device: str
    allocated_bytes: int | None = None
    peak_bytes: int | None = None
    limit_bytes: int | None = None
    driver: DriverReading | None = None
    window: int | None = None

    @property
    def utilization_ratio(self) -> float | None:
        """Share of the limit that was in use at the peak."""
        if self.peak_bytes is None or not self.limit_bytes:
            return None
        return self.peak_bytes / self.limit_bytes


@dataclasses.dataclass(frozen=True)
class MemoryReading:
    """Memory of devices and host at one moment.

    Attributes:
        time: Float. Seconds since 1970.
        step: Integer. Batches that `fit` had finished.
        seconds: Float. What the reading took.
        devices: Tuple of `DeviceReading`.
        host: `HostMemory`.
    """

    time: float
    step: int
    seconds: float
    devices: tuple[DeviceReading, ...]
    host: HostMemory


class MemoryReader:
    """Reads the memory of devices and host.

    Args:
        devices: Sequence of names of logical devices.
        limit_bytes: Integer or `None`. What the allocators may hand out; `None`
            asks TensorFlow.

    Attributes:
        windows: Dict from the names to `PeakWindow`.
        limits: Dict from the names to integers, or `None`.
    """

    def __init__(
        self, devices: Sequence[str], limit_bytes: int | None = None
    ) -> None:
        self.windows = {device: PeakWindow(device) for device in devices}
        self.limits = {
            device: limit_bytes or device_limit_bytes(device)
            for device in devices
        }
        for device, limit in self.limits.items():
            if limit is None:
                report_absence(
                    f"utilization of {device}",
                    "nothing limits its allocator; TF_CPU_BFC_MEM_LIMIT_IN_MB "
                    "would limit that of a CPU",
                )
        has_gpu = any("GPU" in device for device in devices)
        self._driver = Driver.open() if has_gpu else None
        self._gpus = gpus_of_devices(self._driver) if self._driver else {}

    def read(self, step: int = 0) -> MemoryReading:
        """Reads everything, and lets the peaks start again.

        Args:
            step: Integer. For the reading. Defaults to 0.

        Returns:
            `MemoryReading`.
        """
        start = time.perf_counter()
        devices = tuple(self._read_device(device) for device in self.windows)
        host = read_host_memory()
        seconds = time.perf_counter() - start
        return MemoryReading(time.time(), step, seconds, devices, host)

    def close(self) -> None:
        """Lets go of the driver."""
        if self._driver is not None:
            self._driver.close()
            self._driver = None

    def _read_device(self, device: str) -> DeviceReading:
        peak = self.windows[device].restart()
        gpu = self._gpus.get(device)
        driver = None
        if self._driver is not None and gpu is not None:
            driver = self._driver.read(gpu.uuid)
        return DeviceReading(
            device,
            None if peak is None else peak.current_bytes,
            None if peak is None else peak.peak_bytes,
            self.limits[device],
            driver,
            None if peak is None else peak.restarts,
        )
