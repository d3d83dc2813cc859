"""Taking the values of variables off a device, and bringing them back."""

from collections.abc import Callable
from collections.abc import Sequence
import contextlib
import threading
from typing import Any
from typing import Protocol

import numpy as np
import tensorflow as tf

from keras_tfopt import _compat
from keras_tfopt import _compat_memory

# What is smaller stays: it would free next to nothing, and a scalar without a
# value would not stop a computation.
MIN_BYTES = 4096


class Store(Protocol):
    """Keeps the values of some variables while they are away."""

    def save(self, arrays: Sequence[np.ndarray]) -> None:
        """Keeps arrays; those it has kept are safe when it returns."""

    def stage(self) -> None:
        """Makes ready what `load` is going to return."""

    def load(self) -> list[np.ndarray]:
        """Returns the arrays, bit for bit."""

    def discard(self) -> None:
        """Forgets the arrays."""


class HostStore:
    """Keeps arrays in the memory of the host."""

    def __init__(self) -> None:
        self._arrays: list[np.ndarray] = []

    def save(self, arrays: Sequence[np.ndarray]) -> None:
        """Keeps arrays."""
        self._arrays = list(arrays)

    def stage(self) -> None:
        """Does nothing: they are ready."""

    def load(self) -> list[np.ndarray]:
        """Returns the arrays."""
        return self._arrays

    def discard(self) -> None:
        """Forgets the arrays."""
        self._arrays = []


class Eviction:
    """The values of some variables, moved from the device into a store.

    The variables keep their handles, so that compiled functions find them when
    their values are back. Until then, whatever in Python uses one, to read, to
    save, to assign, to trace, first calls `on_touch`. A compiled function does
    not: bring the values back before one runs.

    Values are released only after all of them are in the store. When bringing
    them back fails, as for lack of memory, those that are not back are still
    in the store, and `restore` can be called again.

    Args:
        variables: Sequence of Keras or TensorFlow variables. Small ones stay
            where they are.
        store: `Store`. Defaults to the memory of the host.
        on_touch: Callable that must call `restore`. Defaults to `restore`.

    Attributes:
        bytes: Integer. What was released.

    Raises:
        ValueError: If a variable cannot be evicted, or is already.
    """

    def __init__(
        self,
        variables: Sequence[Any],
        store: Store | None = None,
        on_touch: Callable[[], None] | None = None,
    ) -> None:
        self._lock = threading.RLock()
        self._store = HostStore() if store is None else store
        self._away = evictable(variables)
        for variable in self._away:
            if is_away(variable):
                raise ValueError(
                    "A variable is evicted once. Received: "
                    f"{variable.name}, whose value is away. Expected: a "
                    "variable that one group only holds."
                )
        self._order = {id(v): index for index, v in enumerate(self._away)}
        self.bytes = sum(size_of(variable) for variable in self._away)
        self._store.save([read(variable) for variable in self._away])
        self._on_touch = self.restore if on_touch is None else on_touch
        for variable in self._away:
            self._take(variable)

    @property
    def is_away(self) -> bool:
        """Whether there are values that are not back."""
        return bool(self._away)

    def stage(self) -> None:
        """Makes the values ready to come back, on the host."""
        with self._lock:
            if self._away:
                self._store.stage()

    def restore(self) -> None:
        """Brings all values back, the largest first, and empties the store."""
        with self._lock, _eagerly():
            if not self._away:
                return
            arrays = self._store.load()
            # Large blocks are found most easily in an empty memory.
            for variable in sorted(self._away, key=size_of, reverse=True):
                array = arrays[self._order[id(variable)]]
                _compat_memory.forget_touch(variable)
                try:
                    _write(variable, array)
                except BaseException:
                    self._take(variable)
                    raise
                self._away = [v for v in self._away if v is not variable]
            del arrays
            self._store.discard()

    def _take(self, variable: tf.Variable) -> None:
        _release(variable)
        _compat_memory.on_touch(variable, self._on_touch)


def is_away(variable: Any) -> bool:
    """Whether the value of a variable is evicted."""
    return _compat_memory.is_touch_awaited(_stored(variable))


def evictable(variables: Sequence[Any]) -> list[tf.Variable]:
    """Returns the TensorFlow variables whose values are worth moving.

    Args:
        variables: Sequence of Keras or TensorFlow variables.

    Raises:
        ValueError: If a variable is spread over replicas.
    """
    found = {}
    for variable in variables:
        stored = _stored(variable)
        if not _is_plain(stored):
            raise ValueError(
                "Values are moved between one device and the host. Received: "
                f"{type(stored).__name__} {stored.name}. Expected: a variable "
                "without a distribution strategy."
            )
        if size_of(stored) >= MIN_BYTES:
            found[id(stored)] = stored
    return list(found.values())


def size_of(variable: Any) -> int:
    """Returns the bytes of a variable's value."""
    return variable.shape.num_elements() * variable.dtype.size


def read(variable: tf.Variable) -> np.ndarray:
    """Returns a copy of a variable's value on the host."""
    return variable.read_value().numpy()


def _write(variable: tf.Variable, array: np.ndarray) -> None:
    """Gives a variable without a buffer a new one."""
    with tf.device(variable.device):
        # Taking an array in, TensorFlow crashes where an operation that finds
        # no room on the host raises.
        tf.raw_ops.Empty(shape=array.shape, dtype=variable.dtype)
        value = tf.constant(array)
        if may_share(value, array):
            value = tf.raw_ops.DeepCopy(x=value)
        _assign(variable, value)


def may_share(tensor: tf.Tensor, array: np.ndarray) -> bool:
    """Whether TensorFlow may have taken an array for the buffer of a tensor."""
    if "CPU" not in tensor.device:
        return False
    try:
        view = np.frombuffer(memoryview(tensor), np.uint8)
    except (TypeError, ValueError):
        # Not every type has a format of the buffer protocol.
        return True
    return np.may_share_memory(view, array)


def _release(variable: tf.Variable) -> None:
    """Lets go of a variable's buffer."""
    with tf.device(variable.device):
        _assign(variable, tf.zeros((0,), variable.dtype))


def _assign(variable: tf.Variable, value: tf.Tensor) -> None:
    tf.raw_ops.AssignVariableOp(
        resource=variable.handle, value=value, validate_shape=False
    )


def _stored(variable: Any) -> Any:
    if isinstance(variable, tf.Variable):
        return variable
    return _compat.stored_value(variable)


def _is_plain(stored: Any) -> bool:
    """Whether a variable is one buffer of numbers."""
    return (
        isinstance(stored, tf.Variable)
        and not isinstance(stored, tf.distribute.DistributedValues)
        and stored.shape.is_fully_defined()
        and stored.dtype not in (tf.string, tf.resource, tf.variant)
    )


@contextlib.contextmanager
def _eagerly() -> Any:
    """Leaves a graph that is being traced, and any control dependency."""
    with tf.init_scope():
        yield
