"""When a backup is due."""

import re
import time
from typing import Any

_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0}


class SaveSchedule:
    """Says at which steps a backup is due.

    Args:
        save_freq: As for `callbacks.BackupAndRestore`.

    Raises:
        ValueError: If it is nothing of the kind.
    """

    def __init__(self, save_freq: Any) -> None:
        self._every_epoch = save_freq == "epoch"
        self._batches = self._seconds = None
        is_number = isinstance(save_freq, int)
        if is_number and save_freq > 0 and save_freq is not True:
            self._batches = save_freq
        elif isinstance(save_freq, str) and not self._every_epoch:
            self._seconds = _parse_seconds(save_freq)
        is_known = self._every_epoch or self._batches or self._seconds
        if not is_known and save_freq is not False:
            raise ValueError(
                "Invalid value for argument `save_freq`. "
                f"Received: save_freq={save_freq!r}. Expected: 'epoch', a "
                "positive number of batches, an interval such as '30s', '10m' "
                "or '1h', or False to save only when a signal comes."
            )
        self.restart()

    def restart(self) -> None:
        """Notes that the state at hand is saved, or new."""
        self._is_epoch_due = False
        self._count = 0
        self._start = time.monotonic()

    def begin_epoch(self) -> None:
        """Notes that a new epoch begins."""
        self._is_epoch_due = self._every_epoch

    def advance(self, batches: int) -> None:
        """Notes that batches were trained on."""
        self._count += batches

    @property
    def is_due(self) -> bool:
        """Whether it is time for a backup."""
        if self._batches:
            return self._count >= self._batches
        if self._seconds:
            return time.monotonic() - self._start >= self._seconds
        return self._is_epoch_due


def _parse_seconds(text: str) -> float | None:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smh])", text)
    if match is None:
        return None
    return float(match[1]) * _SECONDS[match[2]] or None
