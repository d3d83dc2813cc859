"""Readings of memory that are worth a warning."""

import dataclasses
import time

from keras_tfopt.memory.alarm import Alarm
from keras_tfopt.memory.readings import MemoryReading

HOST = "host"


@dataclasses.dataclass(frozen=True)
class MemoryBreach:
    """A moment at which memory was too full.

    Attributes:
        time: Float. Seconds since 1970.
        step: Integer. Batches that `fit` had finished.
        device: String. Name of a logical device, or `"host"`.
        utilization_ratio: Float. Share of the limit that was in use.
        limit_bytes: Integer. The limit.
    """

    time: float
    step: int
    device: str
    utilization_ratio: float
    limit_bytes: int


class BreachJudge:
    """Finds breaches in readings, each once.

    Args:
        max_utilization: Float. Share of a device's limit that is all right.
        max_host_utilization: Float. The same for the host.
        hysteresis: Float. As for `Alarm`.
        cooldown_seconds: Float. As for `Alarm`.
    """

    def __init__(
        self,
        max_utilization: float,
        max_host_utilization: float,
        hysteresis: float,
        cooldown_seconds: float,
    ) -> None:
        self._max_utilization = max_utilization
        self._max_host_utilization = max_host_utilization
        self._hysteresis = hysteresis
        self._cooldown = cooldown_seconds
        self._alarms: dict[str, Alarm] = {}

    def judge(self, reading: MemoryReading) -> list[MemoryBreach]:
        """Returns the breaches that begin with a reading.

        Args:
            reading: `MemoryReading`.
        """
        found = [
            (device.device, device.utilization_ratio, device.limit_bytes)
            for device in reading.devices
        ]
        host = reading.host
        found.append((HOST, host.utilization_ratio, host.limit_bytes))
        return [
            MemoryBreach(reading.time, reading.step, name, utilization, limit)
            for name, utilization, limit in found
            if utilization is not None
            and limit is not None
            and self._alarm(name).update(utilization, time.monotonic())
        ]

    def _alarm(self, name: str) -> Alarm:
        if name not in self._alarms:
            is_host = name == HOST
            threshold = (
                self._max_host_utilization if is_host else self._max_utilization
            )
            self._alarms[name] = Alarm(
                threshold, self._hysteresis, self._cooldown
            )
        return self._alarms[name]
