"""What the NVIDIA driver says, and who else uses the GPUs."""

from collections.abc import Iterator

from keras_tfopt.doctor.finding import INFO
from keras_tfopt.doctor.finding import OK
from keras_tfopt.doctor.finding import WARNING
from keras_tfopt.doctor.finding import Finding
from keras_tfopt.memory.driver import Driver
from keras_tfopt.memory.driver_reading import DriverReading
from keras_tfopt.memory.gpus import Gpu
from keras_tfopt.memory.nearest_gpus import nearest_gpus
from keras_tfopt.memory.topology import Topology
from keras_tfopt.memory.topology import cpus_near

TOPIC = "driver"
_GIB = 2**30
_MUCH_BYTES = _GIB
# NVIDIA's data center GPUs slow down a few degrees above.
_HOT_CELSIUS = 85


def examine_driver() -> Iterator[Finding]:
    """Yields each GPU of the machine, whether or not TensorFlow sees it."""
    driver = Driver.open()
    if driver is None:
        yield Finding(TOPIC, INFO, "no NVIDIA driver is loaded")
        return
    try:
        for gpu in driver.gpus():
            reading = driver.read(gpu.uuid)
            if reading is not None:
                yield from examine_gpu(gpu, reading)
        yield from examine_topology(driver.topology())
    finally:
        driver.close()


def examine_topology(topology: Topology) -> Iterator[Finding]:
    """Yields the ways between GPUs, and which of them to train on.

    Args:
        topology: `Topology`.
    """
    available = len(topology.gpus)
    if available < 2:
        return
    for gpu, row in zip(topology.gpus, topology.links, strict=True):
        ways = " ".join(f"{link!s:>4}" for link in row)
        cpus = cpus_near(gpu)
        near = f"; processors {cpus}" if cpus else ""
        yield Finding(TOPIC, OK, f"GPU {gpu.index}: {ways}{near}")
    count = 2
    while count < available:
        places = nearest_gpus(topology, count)
        names = ",".join(str(topology.gpus[place].index) for place in places)
        yield Finding(
            TOPIC,
            INFO,
            f"of {count} GPUs, {names} are nearest to each other",
            f"CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEVICES={names}",
        )
        count *= 2


def examine_gpu(gpu: Gpu, reading: DriverReading) -> Iterator[Finding]:
    """Yields what a reading says about a GPU.

    Args:
        gpu: `Gpu`.
        reading: `DriverReading` of it.
    """
    name = f"GPU {gpu.index}, {gpu.name or 'unknown model'}"
    details = [gpu.uuid]
    if reading.total_bytes is not None:
        details.append(f"{reading.total_bytes / _GIB:.1f} GiB")
    if reading.free_bytes is not None:
        details.append(f"{reading.free_bytes / _GIB:.1f} GiB free")
    if gpu.is_cut:
        details.append(f"cut into {len(gpu.instances)} instances")
    yield Finding(TOPIC, OK, f"{name}: {', '.join(details)}")
    if (reading.other_bytes or 0) > _MUCH_BYTES:
        yield Finding(
            TOPIC,
            WARNING,
            f"{name}: other processes use "
            f"{(reading.other_bytes or 0) / _GIB:.1f} GiB",
            "Leave it out of CUDA_VISIBLE_DEVICES, or set memory.limit to what "
            "is left.",
        )
    if (reading.temperature_celsius or 0) >= _HOT_CELSIUS:
        yield Finding(
            TOPIC,
            WARNING,
            f"{name} has {reading.temperature_celsius} degrees Celsius",
            "Hot GPUs slow down; look at the cooling.",
        )
