"""How much of a device swapped groups may take."""

import logging
from typing import Any

from keras_tfopt.memory.allocator import read_allocator_stats
from keras_tfopt.memory.limit import default_device
from keras_tfopt.memory.limit import device_limit_bytes

_logger = logging.getLogger("keras_tfopt")

# Of the device's limit, what a budget that is raised may lead to.
_MAX_UTILIZATION = 0.9
_MIB = 2**20


class SwapBudget:
    """A limit for the groups, or for all tensors between two steps.

    Args:
        budget_bytes: Integer or `None`. What the groups may take.
        threshold_bytes: Integer or `None`. What all tensors may take. One of
            the two is given.

    Raises:
        ValueError: If not one of the two is given, or if the device counts
            nothing to compare a threshold with.
    """

    def __init__(
        self, budget_bytes: int | None, threshold_bytes: int | None
    ) -> None:
        _check_one(budget_bytes, threshold_bytes)
        self._device = default_device()
        if threshold_bytes is not None:
            self._check_counted(threshold_bytes)
        self.budget_bytes = budget_bytes
        self.threshold_bytes = threshold_bytes
        self._is_reported = False

    def excess(self, resident_bytes: int, needed_bytes: int) -> int:
        """Returns by how much the limit would be exceeded.

        Args:
            resident_bytes: Integer. What groups take now.
            needed_bytes: Integer. What is to come.
        """
        if self.budget_bytes is not None:
            return resident_bytes + needed_bytes - self.budget_bytes
        stats = read_allocator_stats(self._device)
        in_use = 0 if stats is None else stats.current_bytes
        return in_use + needed_bytes - (self.threshold_bytes or 0)

    def relax(self, share: float, moved_bytes: int, total_bytes: int) -> None:
        """Lets a group stay that has room, or says once what is short.

        Args:
            share: Float. Share of the time that swapping takes.
            moved_bytes: Integer. What the group takes that was moved last.
            total_bytes: Integer. What all groups take together.
        """
        old = self.budget_bytes
        if old is not None and self._room() >= moved_bytes:
            self.budget_bytes = max(min(old + moved_bytes, total_bytes), old)
            if self.budget_bytes > old:
                _logger.warning(
                    "Swapping took %.0f %% of the time: its budget is raised "
                    "from %.1f to %.1f MiB.",
                    100 * share,
                    old / _MIB,
                    self.budget_bytes / _MIB,
                )
            return
        if self._is_reported:
            return
        self._is_reported = True
        _logger.warning(
            "Swapping takes %.0f %% of the time. All groups together have "
            "%.1f MiB: use each for more steps in a row, or give them more "
            "room.",
            100 * share,
            total_bytes / _MIB,
        )

    def _room(self) -> int:
        """Returns what the device has never needed; 0 if it is not known."""
        limit = device_limit_bytes(self._device)
        stats = read_allocator_stats(self._device)
        if limit is None or stats is None:
            return 0
        return int(limit * _MAX_UTILIZATION) - stats.peak_bytes

    def _check_counted(self, threshold_bytes: int) -> None:
        if read_allocator_stats(self._device) is None:
            raise ValueError(
                "A threshold is compared with what the allocator counts. "
                f"Received: swap_threshold_bytes={threshold_bytes} on "
                f"{self._device}, which counts nothing. Expected: "
                "`budget_bytes`; or a GPU, or a CPU with "
                "TF_CPU_ALLOCATOR_USE_BFC=true in the environment before "
                "TensorFlow starts."
            )


def _check_one(budget_bytes: Any, threshold_bytes: Any) -> None:
    given = [b for b in (budget_bytes, threshold_bytes) if b is not None]
    if len(given) != 1 or given[0] <= 0:
        raise ValueError(
            "Invalid values for arguments `budget_bytes` and "
            f"`swap_threshold_bytes`. Received: budget_bytes={budget_bytes!r}, "
            f"swap_threshold_bytes={threshold_bytes!r}. Expected: a positive "
            "number for one of the two."
        )
