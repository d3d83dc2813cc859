"""Where the values of variables are while they are away."""

import os
from typing import Any

from keras_tfopt.memory.disk_store import DiskStore
from keras_tfopt.memory.eviction import HostStore
from keras_tfopt.memory.eviction import Store

TIERS = ("host", "disk")


class SwapTier:
    """Makes the stores of one tier.

    Args:
        tier: `"host"` or `"disk"`.
        directory: String or path. Folder on the disk, for `"disk"`.

    Raises:
        ValueError: If one does not belong to the other.
    """

    def __init__(self, tier: str, directory: str | os.PathLike | None) -> None:
        _check_tier(tier, directory)
        self._directory = directory

    def make_store(self) -> Store:
        """Returns a new `Store`."""
        if self._directory is None:
            return HostStore()
        return DiskStore(os.fspath(self._directory))


def _check_tier(tier: str, directory: Any) -> None:
    if tier not in TIERS:
        raise ValueError(
            f"Invalid value for argument `tier`. Received: tier={tier!r}. "
            f"Expected: one of {TIERS}."
        )
    is_folder = directory is not None and os.path.isdir(directory)
    if is_folder != (tier == "disk"):
        raise ValueError(
            "Invalid value for argument `directory`. Received: "
            f"directory={directory!r} with tier={tier!r}. Expected: an "
            "existing folder for tier='disk', and None for tier='host'."
        )
