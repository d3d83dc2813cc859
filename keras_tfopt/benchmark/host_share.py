"""Telling the memory of a device from that of the host, without a GPU.

Logical CPUs have one allocator. But what a plan keeps on the host is copied,
and the trace of the allocator names these copies: what is left would be on the
device.
"""

import contextlib
import dataclasses

import tensorflow as tf

from keras_tfopt.memory.memory_trace import MemoryTrace

_KEPT = "/to_host"


@dataclasses.dataclass(frozen=True)
class HostShare:
    """Peaks of a step beyond what is in use before it.

    Attributes:
        device_bytes: Integer. Of all but what waits on the host.
        host_bytes: Integer. Of what waits on the host.
    """

    device_bytes: int
    host_bytes: int


def host_share(trace: MemoryTrace) -> HostShare:
    """Returns the peaks of device and host in a trace.

    Args:
        trace: `MemoryTrace` of a step on a logical CPU.
    """
    timeline = trace.timeline
    kept = [a for a in timeline.allocations if _KEPT in a.operation]
    held = [
        sum(a.bytes for a in kept if a.is_alive(seconds))
        for seconds in timeline.seconds
    ]
    used = zip(timeline.in_use_bytes, held, strict=True)
    device = max(in_use - away for in_use, away in used)
    return HostShare(device - timeline.in_use_bytes[0], max(held))


def divide_cpu() -> None:
    """Makes two logical CPUs, of which the first stands for the host.

    Must come before the first use of a device.
    """
    (cpu,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(
        cpu, [tf.config.LogicalDeviceConfiguration()] * 2
    )


def stand_in() -> contextlib.AbstractContextManager:
    """Lets models be made on the logical CPU that stands for a device."""
    if len(tf.config.list_logical_devices("CPU")) < 2:
        return contextlib.nullcontext()
    return tf.device("CPU:1")
