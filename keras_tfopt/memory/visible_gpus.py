"""Which GPU of the machine each of TensorFlow's GPUs is.

TensorFlow counts the GPUs that CUDA shows it, the driver counts those of the
machine. Their numbers agree only by chance.
"""

from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import re

from keras_tfopt.memory.gpus import Gpu
from keras_tfopt.memory.gpus import MigInstance
from keras_tfopt.memory.gpus import pci_address

# What the C function `strtol` reads of an entry, as CUDA does.
_LEADING_NUMBER = re.compile(r"\s*([+-]?\d+)")


@dataclasses.dataclass(frozen=True)
class VisibleGpu:
    """A GPU, or an instance of a cut one, that CUDA shows to this process.

    Attributes:
        gpu: `Gpu`.
        instance: `MigInstance`, or `None` for the whole GPU.
    """

    gpu: Gpu
    instance: MigInstance | None = None

    @property
    def uuid(self) -> str:
        """What the driver knows it by."""
        return self.gpu.uuid if self.instance is None else self.instance.uuid


class UnknownOrderError(ValueError):
    """CUDA's numbers of GPUs cannot be told from the driver's."""


def visible_gpus(
    gpus: Sequence[Gpu], visible: str | None, order: str | None
) -> tuple[VisibleGpu, ...]:
    """Returns the GPUs that CUDA shows, in the order of their CUDA numbers.

    An entry that names no GPU ends the list, and a GPU named twice makes it
    empty. Of a cut GPU CUDA shows one instance, and then nothing else.

    Args:
        gpus: Sequence of `Gpu`, as the driver counts them.
        visible: String or `None`. `CUDA_VISIBLE_DEVICES`.
        order: String or `None`. `CUDA_DEVICE_ORDER`.

    Returns:
        Tuple of `VisibleGpu`.

    Raises:
        UnknownOrderError: If numbers stand for GPUs in an order that only CUDA
            knows. "Fastest first", the default, is one where there are several
            GPUs.
    """
    if visible is None:
        ordered = _in_cuda_order(gpus, order)
        _check_uncut(ordered)
        return tuple(VisibleGpu(gpu) for gpu in ordered)
    entries = [entry.strip() for entry in visible.split(",")]
    if entries[0].startswith("MIG-"):
        # CUDA shows no more than one instance.
        return _named_instance(gpus, entries[0])
    if entries[0].startswith("GPU-"):
        named = _named_gpus(gpus, entries)
    else:
        named = _numbered_gpus(gpus, entries, order)
    _check_uncut(named)
    return tuple(VisibleGpu(gpu) for gpu in named)


@dataclasses.dataclass(frozen=True)
class LogicalGpu:
    """A GPU as TensorFlow sees it, which may be a part of a physical one.

    Attributes:
        name: String. Such as `"GPU:0"`.
        position: Integer. The CUDA number of the physical GPU.
        description: String. TensorFlow's description of it, which may name a
            PCI address.
    """

    name: str
    position: int
    description: str = ""


def logical_gpus(
    parts: Mapping[int, int], descriptions: Mapping[str, str]
) -> list[LogicalGpu]:
    """Returns the logical GPUs that TensorFlow makes of physical ones.

    Args:
        parts: Dict from the CUDA number of each physical GPU to the number of
            logical GPUs that it is divided into, in TensorFlow's order.
        descriptions: Dict from names of logical GPUs to TensorFlow's
            descriptions of them.
    """
    positions = [gpu for gpu, count in parts.items() for _ in range(count)]
    names = [f"GPU:{index}" for index in range(len(positions))]
    return [
        LogicalGpu(name, position, descriptions.get(name, ""))
        for name, position in zip(names, positions, strict=True)
    ]


def match_gpus(
    devices: Sequence[LogicalGpu],
    gpus: Sequence[Gpu],
    visible: str | None,
    order: str | None,
) -> dict[str, VisibleGpu | None]:
    """Returns which GPU of the machine each of TensorFlow's GPUs is.

    A place on the PCI bus means the same to both; where TensorFlow names none,
    what CUDA shows decides.

    Args:
        devices: Sequence of `LogicalGpu`.
        gpus: As for `visible_gpus`.
        visible: As for `visible_gpus`.
        order: As for `visible_gpus`.

    Returns:
        Dict from the names of the logical GPUs to `VisibleGpu`, or to `None`
        where it is unknown.
    """
    try:
        shown = visible_gpus(gpus, visible, order)
    except UnknownOrderError:
        shown = ()
    by_address = {gpu.pci_address: gpu for gpu in gpus if gpu.pci_address}
    return {
        device.name: _match(device, by_address, shown) for device in devices
    }


def _match(
    device: LogicalGpu,
    by_address: Mapping[str, Gpu],
    shown: Sequence[VisibleGpu],
) -> VisibleGpu | None:
    address = pci_address(device.description)
    if address is None:
        in_range = device.position < len(shown)
        return shown[device.position] if in_range else None
    gpu = by_address.get(address)
    if gpu is None or not gpu.is_cut:
        return None if gpu is None else VisibleGpu(gpu)
    # The address of a cut GPU does not tell on which instance we compute.
    chosen = [c for c in shown if c.gpu == gpu and c.instance is not None]
    if not chosen and len(gpu.instances) == 1:
        return VisibleGpu(gpu, gpu.instances[0])
    return chosen[0] if chosen else None


def _in_cuda_order(gpus: Sequence[Gpu], order: str | None) -> list[Gpu]:
    if len(gpus) > 1 and order != "PCI_BUS_ID":
        raise UnknownOrderError(
            "CUDA counts the fastest GPU first, and only CUDA knows which that "
            f"is. Received: CUDA_DEVICE_ORDER={order!r} with {len(gpus)} GPUs. "
            "Expected: CUDA_DEVICE_ORDER='PCI_BUS_ID', or UUIDs in "
            "CUDA_VISIBLE_DEVICES."
        )
    return sorted(gpus, key=lambda gpu: gpu.index)


def _check_uncut(gpus: Sequence[Gpu]) -> None:
    if any(gpu.is_cut for gpu in gpus):
        raise UnknownOrderError(
            "CUDA chooses the instance of a GPU in MIG mode. Received: "
            "CUDA_VISIBLE_DEVICES without the UUID of one. Expected: the UUID "
            "of an instance, 'MIG-...'."
        )


def _numbered_gpus(
    gpus: Sequence[Gpu], entries: Sequence[str], order: str | None
) -> list[Gpu]:
    numbers: list[int] = []
    for entry in entries:
        found = _LEADING_NUMBER.match(entry)
        number = int(found[1]) if found else -1
        if not 0 <= number < len(gpus):
            break
        if number in numbers:
            return []
        numbers.append(number)
    if not numbers:
        return []
    ordered = _in_cuda_order(gpus, order)
    return [ordered[number] for number in numbers]


def _named_gpus(gpus: Sequence[Gpu], entries: Sequence[str]) -> list[Gpu]:
    named: list[Gpu] = []
    for entry in entries:
        # A prefix will do if it is the prefix of one.
        matches = [gpu for gpu in gpus if gpu.uuid.startswith(entry)]
        if len(matches) != 1 or not entry.startswith("GPU-"):
            break
        if matches[0] in named:
            return []
        named.append(matches[0])
    return named


def _named_instance(gpus: Sequence[Gpu], entry: str) -> tuple[VisibleGpu, ...]:
    """Returns the instance of a UUID, or of `MIG-GPU-<UUID>/<GI>/<CI>`."""
    matches = []
    for gpu in gpus:
        for instance in gpu.instances:
            numbers = f"{instance.gpu_instance}/{instance.compute_instance}"
            names = instance.uuid, f"MIG-{gpu.uuid}/{numbers}"
            if names[0].startswith(entry) or names[1] == entry:
                matches.append(VisibleGpu(gpu, instance))
    return tuple(matches) if len(matches) == 1 else ()
