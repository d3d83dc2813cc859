"""Making one free block of many, by moving variables out and back in."""

from collections.abc import Sequence
import dataclasses
import gc
import time
from typing import Any

import tensorflow as tf

from keras_tfopt.errors import OutOfMemoryError
from keras_tfopt.errors import allocation_line
from keras_tfopt.memory.eviction import Eviction
from keras_tfopt.memory.eviction import evictable
from keras_tfopt.memory.eviction import is_away
from keras_tfopt.memory.fragmentation import Fragmentation
from keras_tfopt.memory.fragmentation import read_fragmentation

_ATTEMPTS = 3


@dataclasses.dataclass(frozen=True)
class Compaction:
    """What moving variables out and back in has changed.

    Attributes:
        moved_bytes: Integer.
        seconds: Float. Time of the move, without the two readings.
        before: `Fragmentation`, or `None` where it could not be read.
        after: `Fragmentation`, or `None` where it could not be read.
    """

    moved_bytes: int
    seconds: float
    before: Fragmentation | None
    after: Fragmentation | None

    @property
    def gained_bytes(self) -> int:
        """What the largest free block has grown by."""
        if self.before is None or self.after is None:
            return 0
        return self.after.largest_free_bytes - self.before.largest_free_bytes

    def __str__(self) -> str:
        """Returns what became of the largest block, in words."""
        mib = 2**20
        moved = (
            f"moved {self.moved_bytes / mib:.1f} MiB in {self.seconds:.2f} s"
        )
        if self.before is None or self.after is None:
            return moved
        return (
            f"{moved}: largest free block "
            f"{self.before.largest_free_bytes / mib:.1f} to "
            f"{self.after.largest_free_bytes / mib:.1f} MiB, fragmentation "
            f"{self.before.ratio:.0%} to {self.after.ratio:.0%}"
        )


def compact(variables: Sequence[Any], device: str = "CPU:0") -> Compaction:
    """Moves variables to the host, and back into one piece of the device.

    Variables live long; between them, what lived shorter leaves holes that are
    too small for a large tensor. What is not a variable of the model stays
    where it is: batches that are prefetched, tensors that Python holds.

    Call it between two steps, with memory on the host for all variables. Values
    are the same, bit for bit.

    Example:

    ```python
    import keras

    from keras_tfopt.memory import compact

    model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(64)])
    print(compact(model.variables))
    ```

    Args:
        variables: Sequence of Keras or TensorFlow variables. Those that are on
            other devices, or evicted, stay there.
        device: String. Name of a logical device. Defaults to `"CPU:0"`.

    Returns:
        `Compaction`.

    Raises:
        ValueError: If a variable is spread over replicas.
        OutOfMemoryError: If something else has taken the room meanwhile, or
            holds the values that were moved. No value is lost.
    """
    # Dead models are reference cycles, and hold what they held.
    gc.collect()
    before = read_fragmentation(device)
    start = time.perf_counter()
    name = device.rpartition("device:")[-1].strip("/")
    moved = [
        variable
        for variable in evictable(variables)
        if not is_away(variable) and variable.device.endswith(name)
    ]
    eviction = Eviction(moved)
    _bring_back(eviction)
    seconds = time.perf_counter() - start
    return Compaction(
        eviction.bytes, seconds, before, read_fragmentation(device)
    )


def _bring_back(eviction: Eviction) -> None:
    """Brings values back, also when others take their time to let go of them.

    A backup that is being written holds the values of its step. TensorFlow's
    allocator waits some seconds for them in each attempt.
    """
    for attempt in range(_ATTEMPTS):
        try:
            eviction.restore()
            return
        except tf.errors.ResourceExhaustedError as error:
            if attempt + 1 < _ATTEMPTS:
                continue
            raise OutOfMemoryError(
                "Variables that were moved to the host do not fit onto the "
                f"device any more. Received: {allocation_line(error)}. "
                "Expected: the room that they had. Their values are on the "
                "host, and come back when something is freed and Python uses "
                "them, as to save the model."
            ) from error
