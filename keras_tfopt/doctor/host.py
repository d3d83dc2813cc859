"""Memory of the host, whose end is a kill and no exception."""

from collections.abc import Iterator

from keras_tfopt.doctor.finding import OK
from keras_tfopt.doctor.finding import WARNING
from keras_tfopt.doctor.finding import Finding
from keras_tfopt.memory.host import HostMemory
from keras_tfopt.memory.host import read_host_memory

TOPIC = "host"
_GIB = 2**30
_LITTLE_BYTES = 2 * _GIB


def examine_host() -> Iterator[Finding]:
    """Yields how much memory the host has left."""
    yield from examine_host_memory(read_host_memory())


def examine_host_memory(memory: HostMemory) -> Iterator[Finding]:
    """Yields what a reading says.

    Args:
        memory: `HostMemory`.
    """
    if memory.available_bytes is None or memory.limit_bytes is None:
        yield Finding(TOPIC, OK, "the kernel does not tell about memory")
        return
    taken = memory.group_bytes or memory.rss_bytes or 0
    left = min(memory.available_bytes, memory.limit_bytes - taken)
    text = (
        f"{left / _GIB:.1f} GiB left; the kernel kills at "
        f"{memory.limit_bytes / _GIB:.1f} GiB"
    )
    if left < _LITTLE_BYTES:
        advice = "Raise the limit of the container, or load less at once."
        yield Finding(TOPIC, WARNING, text, advice)
    else:
        yield Finding(TOPIC, OK, text)
