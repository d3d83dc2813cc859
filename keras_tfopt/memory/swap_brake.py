"""Stopping to swap in while memory is short."""

import logging

from keras_tfopt.memory.readings import MemoryReading
from keras_tfopt.memory.swap import SwapManager

_logger = logging.getLogger("keras_tfopt")


class SwapBrake:
    """Pauses a `SwapManager` above a threshold until there is room again.

    Args:
        manager: `SwapManager`.
        max_utilization: Float. Share of a device's limit that is all right.
        hysteresis: Float. How far utilization must fall below that before the
            manager goes on.
    """

    def __init__(
        self, manager: SwapManager, max_utilization: float, hysteresis: float
    ) -> None:
        self._manager = manager
        self._max_utilization = max_utilization
        self._clear = max_utilization - hysteresis

    def update(self, reading: MemoryReading) -> None:
        """Takes a reading, from any thread.

        Args:
            reading: `MemoryReading`. Devices that count nothing say nothing.
        """
        known = [
            (device.utilization_ratio, device.device)
            for device in reading.devices
            if device.utilization_ratio is not None
        ]
        if not known:
            return
        utilization, device = max(known)
        if utilization > self._max_utilization:
            self._set(True, utilization, device)
        elif utilization <= self._clear:
            self._set(False, utilization, device)

    def release(self) -> None:
        """Lets the manager go on, when nobody reads any more."""
        self._manager.resume()

    def _set(self, pauses: bool, utilization: float, device: str) -> None:
        if pauses == self._manager.is_paused:
            return
        if pauses:
            self._manager.pause()
        else:
            self._manager.resume()
        _logger.warning(
            "%s is %.0f %% full: %s.",
            device,
            100 * utilization,
            "groups are swapped in only where others leave for them"
            if pauses
            else "groups are swapped in as the budget allows",
        )
