"""The devices that layers are sharded over."""

from collections.abc import Sequence
import dataclasses
from typing import TypeAlias

import tensorflow as tf

Devices: TypeAlias = "Sequence[str] | Sequence[Sequence[str]]"


@dataclasses.dataclass(frozen=True)
class Mesh:
    """Devices in rows: one row per part of a batch, one column per shard.

    Attributes:
        rows: Tuple of equally long tuples of names of devices.
    """

    rows: tuple[tuple[str, ...], ...]

    @property
    def groups(self) -> int:
        """Number of parts that batches are divided into."""
        return len(self.rows)

    @property
    def shards(self) -> int:
        """Number of shards of a layer."""
        return len(self.rows[0])

    @property
    def home(self) -> str:
        """The device that holds what is whole."""
        return self.rows[0][0]


def parse_devices(devices: Devices) -> Mesh:
    """Returns the mesh of devices that a user named.

    Args:
        devices: List of names of devices, or list of such lists.

    Returns:
        `Mesh`.

    Raises:
        ValueError: If a device does not exist or is named twice, if rows differ
            in length, or inside the scope of a distribution strategy.
    """
    rows = [[row] if isinstance(row, str) else list(row) for row in devices]
    if all(isinstance(entry, str) for entry in devices):
        rows = [[name for row in rows for name in row]]
    names = [_canonical(name) for row in rows for name in row]
    known = [_canonical(one.name) for one in tf.config.list_logical_devices()]
    missing = sorted({*names} - {*known})
    reason = None
    if not names or len({len(row) for row in rows}) != 1:
        reason = "names of devices, or rows of them of the same length"
    elif missing:
        reason = (
            f"devices that exist here, which {', '.join(missing)} do not. A "
            "model for other devices is made by `shard` from a stock model, "
            "or from what `unshard` returns"
        )
    elif len({*names}) != len(names):
        reason = "each device once"
    if reason is not None:
        raise ValueError(
            "Invalid value for argument `devices`. Received: "
            f"devices={devices!r}. Expected: {reason}. TensorFlow has "
            f"{', '.join(known)}."
        )
    refuse_strategy()
    width = len(rows[0])
    return Mesh(
        tuple(
            tuple(names[start : start + width])
            for start in range(0, len(names), width)
        )
    )


def refuse_strategy() -> None:
    """Raises `ValueError` inside the scope of a distribution strategy."""
    if tf.distribute.has_strategy():
        raise ValueError(
            "Layers cannot be placed on devices inside the scope of a "
            "distribution strategy, which places variables itself. Received: "
            f"{type(tf.distribute.get_strategy()).__name__}. Expected: no "
            "strategy. For data parallelism give `devices` as rows, one for "
            "each part of a batch."
        )


def split_sizes(size: int, count: int) -> list[int]:
    """Returns how much of a dimension each of `count` parts gets."""
    return [
        (index + 1) * size // count - index * size // count
        for index in range(count)
    ]


def _canonical(name: str) -> str:
    """Returns a device as `GPU:0`, however it is written."""
    short = name.rpartition("device:")[-1].lstrip("/")
    kind, _, index = short.partition(":")
    return f"{kind.upper()}:{index or 0}"
