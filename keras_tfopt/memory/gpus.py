"""The GPUs that the NVIDIA driver knows, as data."""

import dataclasses
import re

_PCI_ADDRESS = re.compile(
    r"\b([0-9a-f]{4,8}):([0-9a-f]{2}):([0-9a-f]{2})\.([0-9a-f])\b",
    re.IGNORECASE,
)


@dataclasses.dataclass(frozen=True)
class MigInstance:
    """A part of a GPU that stands for a device of its own.

    Attributes:
        uuid: String. Such as `"MIG-…"`.
        gpu_instance: Integer. Number of the part of the memory.
        compute_instance: Integer. Number of the part of the processors in it.
    """

    uuid: str
    gpu_instance: int
    compute_instance: int


@dataclasses.dataclass(frozen=True)
class Gpu:
    """A GPU of the machine, whether or not TensorFlow sees it.

    Attributes:
        index: Integer. The driver's number, by place on the PCI bus.
        uuid: String. Such as `"GPU-…"`.
        pci_address: String or `None`. As `pci_address` writes it.
        name: String or `None`. What is sold.
        instances: Tuple of `MigInstance`; empty unless the GPU is cut.
        is_cut: Boolean. Whether the GPU is in MIG mode.
    """

    index: int
    uuid: str
    pci_address: str | None = None
    name: str | None = None
    instances: tuple[MigInstance, ...] = ()
    is_cut: bool = False


def pci_address(text: str) -> str | None:
    """Returns the PCI address in a text, always written in the same way.

    The driver writes `00000000:3B:00.0` where TensorFlow writes
    `0000:3b:00.0`.

    Args:
        text: String that may hold an address.

    Returns:
        String such as `"0000:3b:00.0"`, or `None`.
    """
    found = _PCI_ADDRESS.search(text)
    if found is None:
        return None
    domain, bus, device, function = (int(part, 16) for part in found.groups())
    return f"{domain:04x}:{bus:02x}:{device:02x}.{function:x}"


def text_of(value: str | bytes) -> str:
    """Returns text of the bindings, some versions of which give bytes."""
    return value.decode() if isinstance(value, bytes) else value
