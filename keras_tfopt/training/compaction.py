"""Moving the state of a training together, also where a step has failed."""

from collections.abc import Callable
import logging
import re

import keras
import tensorflow as tf

from keras_tfopt.checkpoint.variables import variables_of
from keras_tfopt.errors import OutOfMemoryError
from keras_tfopt.errors import allocation_line
from keras_tfopt.errors import is_out_of_memory
from keras_tfopt.memory.compaction import Compaction
from keras_tfopt.memory.compaction import compact
from keras_tfopt.memory.fragmentation import Fragmentation
from keras_tfopt.memory.fragmentation import read_fragmentation
from keras_tfopt.memory.limit import default_device
from keras_tfopt.plan import ExecutionPlan
from keras_tfopt.training.failure import Remedy
from keras_tfopt.training.failure import StepFailure

_logger = logging.getLogger("keras_tfopt")

# How TensorFlow says what did not fit.
_TENSOR = re.compile(r"tensor with shape\[([\d,]*)\] and type (\w+)")


def compact_model(model: keras.Model, device: str | None = None) -> Compaction:
    """Moves weights, slots, state and metrics of a model together.

    See `keras_tfopt.memory.compact`. Call it between two steps.

    Args:
        model: A Keras model.
        device: String. Name of a logical device. Defaults to the one that
            TensorFlow places models on.

    Returns:
        `Compaction`.
    """
    return compact(variables_of(model), device or default_device())


class CompactionRemedy(Remedy):
    """Runs a batch again, after free memory is made one piece.

    It acts where a tensor did not fit although there was room for it, in
    pieces. What does not help is tried ever more rarely: each failed allocation
    costs TensorFlow 10 to 20 seconds.

    Args:
        model: The model that is trained.
        max_ratio: Float. Fragmentation below which nothing is moved.
        on_compaction: Callable that is told of each `Compaction`.
    """

    def __init__(
        self,
        model: keras.Model,
        max_ratio: float,
        on_compaction: Callable[[Compaction], None],
    ) -> None:
        self._model = model
        self._max_ratio = max_ratio
        self._on_compaction = on_compaction
        self._device = default_device()
        self._skip = 0
        self._futile = 0

    @property
    def decides_alike(self) -> bool:
        """Whether workers decide so alike: each measures for itself."""
        return False

    def propose(self, failure: StepFailure) -> tuple[ExecutionPlan, str] | None:
        """Returns the same plan if the free memory has become one piece."""
        if not is_out_of_memory(failure.error):
            return None
        if isinstance(failure.error, OutOfMemoryError):
            return None
        if failure.tried.count(failure.tried[-1]) > 1:
            # It failed again, whatever was done.
            self._back_off()
            return None
        if self._skip:
            self._skip -= 1
            return None
        found = read_fragmentation(self._device)
        needed = requested_bytes(failure.error)
        if found is None or not self._can_help(found, needed):
            return None
        compaction = compact_model(self._model, self._device)
        self._on_compaction(compaction)
        if compaction.gained_bytes <= 0:
            self._back_off()
            return None
        return failure.plan, f"out of memory in pieces, {compaction}"

    def _can_help(self, found: Fragmentation, needed: int | None) -> bool:
        return found.ratio > self._max_ratio and is_in_pieces(found, needed)

    def _back_off(self) -> None:
        self._futile += 1
        self._skip = 2**self._futile - 1


def is_in_pieces(found: Fragmentation, needed_bytes: int | None) -> bool:
    """Whether a tensor did not fit for want of one piece, not of memory.

    Args:
        found: `Fragmentation` after the failure.
        needed_bytes: Integer. Size of the tensor; `None` if it is not known.
    """
    if needed_bytes is None:
        return True
    if needed_bytes > found.free_bytes:
        return False
    # No more than the peak was in use when the tensor was asked for.
    was_room = found.peak_bytes + needed_bytes <= found.limit_bytes
    return needed_bytes > found.largest_free_bytes or was_room


def requested_bytes(error: BaseException) -> int | None:
    """Returns the size of the tensor that an error says did not fit."""
    found = _TENSOR.search(allocation_line(error))
    if not found:
        return None
    shape, name = found.groups()
    try:
        dtype = tf.dtypes.as_dtype(name)
    except TypeError:
        return None
    return tf.TensorShape(
        [int(size) for size in shape.split(",") if size]
    ).num_elements() * (dtype.size or 1)
