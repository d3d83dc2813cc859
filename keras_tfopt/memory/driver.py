"""What the NVIDIA driver says about GPUs."""

from collections.abc import Callable
import os
from typing import Any

from keras_tfopt.memory.absence import report_absence
from keras_tfopt.memory.driver_reading import DriverReading
from keras_tfopt.memory.gpus import Gpu
from keras_tfopt.memory.gpus import MigInstance
from keras_tfopt.memory.gpus import pci_address
from keras_tfopt.memory.gpus import text_of
from keras_tfopt.memory.topology import Topology
from keras_tfopt.memory.topology import read_topology

_READINGS = "readings of the NVIDIA driver"


class Driver:
    """The NVIDIA driver, through its management library NVML.

    What a driver does not tell is absent, and one INFO line in the log says
    why. A GPU that is lost is not asked again.

    Example:

    ```python
    from keras_tfopt.memory import Driver

    driver = Driver.open()
    if driver is not None:
        for gpu in driver.gpus():
            print(gpu.name, driver.read(gpu.uuid))
        driver.close()
    ```

    Args:
        nvml: The module `pynvml`, initialized; `open` provides it.
    """

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        self._lost: set[str] = set()
        # After these, further questions have no better answers.
        self._final = {
            nvml.NVML_ERROR_UNINITIALIZED,
            nvml.NVML_ERROR_DRIVER_NOT_LOADED,
            nvml.NVML_ERROR_GPU_IS_LOST,
            nvml.NVML_ERROR_RESET_REQUIRED,
            nvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
        }

    @classmethod
    def open(cls) -> "Driver | None":
        """Returns the driver, or `None` where there is none."""
        try:
            import pynvml
        except ImportError as error:
            report_absence(_READINGS, f"nvidia-ml-py is missing ({error})")
            return None
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            report_absence(_READINGS, f"no NVIDIA driver ({error})")
            return None
        return cls(pynvml)

    def close(self) -> None:
        """Lets go of the library."""
        try:
            self._nvml.nvmlShutdown()
        except self._nvml.NVMLError as error:
            report_absence("orderly end of NVML", str(error))

    def gpus(self) -> tuple[Gpu, ...]:
        """Returns the GPUs of the machine, apart from lost ones."""
        count = self._ask("GPUs", self._nvml.nvmlDeviceGetCount)
        found = (self._gpu(index) for index in range(count or 0))
        return tuple(gpu for gpu in found if gpu is not None)

    def topology(self) -> Topology:
        """Returns how the GPUs of the machine are connected."""

        def ask(function: Callable, *arguments: Any) -> Any:
            return self._ask("connections of GPUs", function, *arguments)

        return read_topology(self._nvml, self.gpus(), ask)

    def read(self, uuid: str) -> DriverReading | None:
        """Reads what the driver says about a GPU.

        Takes some 40 milliseconds where the driver counts what goes over the
        bus.

        Args:
            uuid: String. UUID of a `Gpu` or a `MigInstance`.

        Returns:
            `DriverReading`, or `None` if the GPU is not there any more.
        """
        handle = self._about(
            uuid, "handle", self._nvml.nvmlDeviceGetHandleByUUID, uuid
        )
        if handle is None:
            return None
        values = {
            **self._memory(uuid, handle),
            **self._processes(uuid, handle),
            **self._activity(uuid, handle),
            **self._bus(uuid, handle),
        }
        return None if uuid in self._lost else DriverReading(**values)

    def _gpu(self, index: int) -> Gpu | None:
        nvml, name = self._nvml, f"GPU {index} of the driver"
        handle = self._ask(name, nvml.nvmlDeviceGetHandleByIndex, index)
        if handle is None:
            return None
        uuid = self._ask(f"UUID of {name}", nvml.nvmlDeviceGetUUID, handle)
        if uuid is None:
            return None
        info = self._about(
            uuid, "PCI address", nvml.nvmlDeviceGetPciInfo, handle
        )
        is_cut = self._is_cut(handle)
        return Gpu(
            index,
            uuid,
            None if info is None else pci_address(text_of(info.busId)),
            self._about(uuid, "name", nvml.nvmlDeviceGetName, handle),
            self._instances(uuid, handle) if is_cut else (),
            is_cut,
        )

    def _is_cut(self, handle: Any) -> bool:
        try:
            mode, _ = self._nvml.nvmlDeviceGetMigMode(handle)
        except self._nvml.NVMLError:
            # GPUs and drivers that know nothing of it.
            return False
        return mode == self._nvml.NVML_DEVICE_MIG_ENABLE

    def _instances(self, uuid: str, handle: Any) -> tuple[MigInstance, ...]:
        nvml = self._nvml
        count = self._about(
            uuid, "MIG instances", nvml.nvmlDeviceGetMaxMigDeviceCount, handle
        )
        found = []
        for index in range(count or 0):
            try:
                part = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)
                found.append(
                    MigInstance(
                        nvml.nvmlDeviceGetUUID(part),
                        nvml.nvmlDeviceGetGpuInstanceId(part),
                        nvml.nvmlDeviceGetComputeInstanceId(part),
                    )
                )
            except nvml.NVMLError:
                # A place for an instance that nobody has made.
                continue
        return tuple(found)

    def _memory(self, uuid: str, handle: Any) -> dict[str, int | None]:
        nvml = self._nvml
        ask = nvml.nvmlDeviceGetMemoryInfo
        memory = self._about(
            uuid, "reserved memory", ask, handle, nvml.nvmlMemory_v2
        )
        reserved = None if memory is None else memory.reserved
        if memory is None:
            memory = self._about(uuid, "memory", ask, handle)
        if memory is None:
            return {}
        return {
            "total_bytes": memory.total,
            "used_bytes": memory.used,
            "free_bytes": memory.free,
            "reserved_bytes": reserved,
        }

    def _processes(self, uuid: str, handle: Any) -> dict[str, int | None]:
        what = "use by processes"
        lists = [
            self._about(uuid, what, self._newest, name, handle)
            for name in (
                "nvmlDeviceGetComputeRunningProcesses",
                "nvmlDeviceGetGraphicsRunningProcesses",
            )
        ]
        if None in lists:
            return {}
        # A process that computes and draws is in both, with the same bytes.
        used = {p.pid: p.usedGpuMemory for both in lists for p in both}
        if None in used.values():
            report_absence(f"{what} of {uuid}", "the driver names no bytes")
            return {}
        own = used.pop(os.getpid(), None)
        if own is None and used:
            # In a container the driver's numbers of processes are others.
            report_absence(
                f"own part of the {what} of {uuid}",
                "the driver does not know this process by its number",
            )
            return {}
        return {"own_bytes": own or 0, "other_bytes": sum(used.values())}

    def _activity(self, uuid: str, handle: Any) -> dict[str, Any]:
        nvml = self._nvml
        rates = self._about(
            uuid, "utilization", nvml.nvmlDeviceGetUtilizationRates, handle
        )
        milliwatts = self._about(
            uuid, "power", nvml.nvmlDeviceGetPowerUsage, handle
        )
        return {
            "utilization_ratio": None if rates is None else rates.gpu / 100,
            "memory_activity_ratio": (
                None if rates is None else rates.memory / 100
            ),
            "power_watts": None if milliwatts is None else milliwatts / 1000,
            "temperature_celsius": self._about(
                uuid,
                "temperature",
                nvml.nvmlDeviceGetTemperature,
                handle,
                nvml.NVML_TEMPERATURE_GPU,
            ),
        }

    def _bus(self, uuid: str, handle: Any) -> dict[str, int | None]:
        nvml = self._nvml
        kilobytes = {
            f"pcie_{direction}_bytes_per_second": self._about(
                uuid,
                f"bytes {direction} over PCIe",
                nvml.nvmlDeviceGetPcieThroughput,
                handle,
                counter,
            )
            for direction, counter in (
                ("sent", nvml.NVML_PCIE_UTIL_TX_BYTES),
                ("received", nvml.NVML_PCIE_UTIL_RX_BYTES),
            )
        }
        return {
            name: None if value is None else 1000 * value
            for name, value in kilobytes.items()
        }

    def _newest(self, name: str, handle: Any) -> Any:
        """Calls the newest version of a function that the driver has."""
        # Without a version in the name, an older driver makes the binding raise
        # what is no `NVMLError`. Both versions write the same structure.
        try:
            return getattr(self._nvml, f"{name}_v3")(handle)
        except self._nvml.NVMLError as error:
            if error.value != self._nvml.NVML_ERROR_FUNCTION_NOT_FOUND:
                raise
            return getattr(self._nvml, f"{name}_v2")(handle)

    def _about(
        self, uuid: str, what: str, ask: Callable, *arguments: Any
    ) -> Any:
        """Asks about a GPU, unless it is lost."""
        if uuid in self._lost:
            return None
        try:
            return ask(*arguments)
        except self._nvml.NVMLError as error:
            if error.value in self._final:
                self._lost.add(uuid)
                report_absence(f"{_READINGS} of {uuid}", f"NVML lost: {error}")
            else:
                report_absence(f"{what} of {uuid}", str(error))
            return None

    def _ask(self, what: str, ask: Callable, *arguments: Any) -> Any:
        try:
            return ask(*arguments)
        except self._nvml.NVMLError as error:
            report_absence(what, str(error))
            return None
