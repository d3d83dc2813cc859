"""How the GPUs of a machine are connected."""

from collections.abc import Callable
import dataclasses
import pathlib
from typing import Any

from keras_tfopt.memory.gpus import Gpu
from keras_tfopt.memory.gpus import pci_address
from keras_tfopt.memory.gpus import text_of

# More than any GPU has.
_MAX_LINKS = 18
_SYSFS = pathlib.Path("/sys/bus/pci/devices")
# What the driver calls the nearest thing that two GPUs hang on, and what its
# own tool calls it.
_ANCESTORS = {
    0: "X",
    10: "PIX",
    20: "PXB",
    30: "PHB",
    40: "NODE",
    50: "SYS",
}
_NVLINK_DISTANCE = 1
_UNKNOWN_DISTANCE = 60


@dataclasses.dataclass(frozen=True)
class Link:
    """The way from one GPU to another.

    Attributes:
        nvlinks: Integer. NVLinks that lead there directly.
        ancestor: Integer or `None`. The driver's number for the nearest thing
            that both hang on: 10 a PCIe switch, 50 the link between sockets.
    """

    nvlinks: int = 0
    ancestor: int | None = None

    @property
    def distance(self) -> int:
        """How far it is, for comparing."""
        if self.nvlinks:
            return _NVLINK_DISTANCE
        return _UNKNOWN_DISTANCE if self.ancestor is None else self.ancestor

    def __str__(self) -> str:
        """Returns it as `nvidia-smi topo` shows it."""
        if self.nvlinks:
            return f"NV{self.nvlinks}"
        return "?" if self.ancestor is None else _ANCESTORS[self.ancestor]


@dataclasses.dataclass(frozen=True)
class Topology:
    """The GPUs of a machine and the ways between them.

    Attributes:
        gpus: Tuple of `Gpu`.
        links: Tuple with a tuple of `Link` for each GPU.
    """

    gpus: tuple[Gpu, ...]
    links: tuple[tuple[Link, ...], ...]


def read_topology(nvml: Any, gpus: tuple[Gpu, ...], ask: Callable) -> Topology:
    """Reads how GPUs are connected.

    Args:
        nvml: The bindings of the driver.
        gpus: Tuple of `Gpu`.
        ask: Callable `(function, *arguments)` that returns the answer of the
            driver, or `None`.
    """
    handles = [ask(nvml.nvmlDeviceGetHandleByUUID, gpu.uuid) for gpu in gpus]
    counts = [_nvlinks_of(nvml, handle, ask) for handle in handles]
    links = tuple(
        tuple(
            Link(
                counts[index].get(other.pci_address, 0),
                0
                if index == place
                else ask(
                    nvml.nvmlDeviceGetTopologyCommonAncestor,
                    handles[index],
                    handles[place],
                ),
            )
            for place, other in enumerate(gpus)
        )
        for index in range(len(gpus))
    )
    return Topology(gpus, links)


def cpus_near(gpu: Gpu, sysfs: pathlib.Path = _SYSFS) -> str | None:
    """Returns the processors of the socket that a GPU hangs on.

    Args:
        gpu: `Gpu`.
        sysfs: Path. Where the kernel shows PCI devices.

    Returns:
        String such as `"0-15,32-47"`, or `None` where the kernel does not tell.
    """
    try:
        text = (sysfs / str(gpu.pci_address) / "local_cpulist").read_text()
    except OSError:
        return None
    return text.strip() or None


def _nvlinks_of(nvml: Any, handle: Any, ask: Callable) -> dict[str | None, int]:
    """Counts the active links of a GPU by the address that they lead to."""
    counts: dict[str | None, int] = {}
    for link in range(_MAX_LINKS):
        is_active = ask(nvml.nvmlDeviceGetNvLinkState, handle, link)
        if is_active is None:
            # It has no more.
            break
        if is_active:
            remote = ask(nvml.nvmlDeviceGetNvLinkRemotePciInfo, handle, link)
            address = remote and pci_address(text_of(remote.busId))
            counts[address] = counts.get(address, 0) + 1
    return counts
