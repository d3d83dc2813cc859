"""How `fit` comes back to a position in its data, and whether exactly."""

from collections.abc import Callable
import dataclasses
import secrets
from typing import Any

import tensorflow as tf

from keras_tfopt import _compat_fit
from keras_tfopt.data.array_order import ArrayOrder

STATE = "state"
SKIP = "skip"
REPLAY = "replay"

_WORDS = {
    STATE: "the data's iterator is restored",
    SKIP: "the batches of the interrupted epoch that were seen are skipped",
    REPLAY: "all batches that were seen are drawn again and thrown away",
}


@dataclasses.dataclass(frozen=True)
class WayBack:
    """A way back to a position in the data.

    Attributes:
        name: String. `"state"`, `"skip"` or `"replay"`.
        reason: String. Why not a better one.
        doubt: String. Why the order may be another one after a restart; empty
            if it is the same.
        order: `ArrayOrder` that stands in for the shuffling of Keras, or
            `None`.
    """

    name: str
    reason: str = ""
    doubt: str = ""
    order: ArrayOrder | None = None

    def __str__(self) -> str:
        """Returns the way in words."""
        words = _WORDS[self.name]
        return f"{words}: {self.reason}" if self.reason else words

    @property
    def order_seed(self) -> int | None:
        """The seed that arrays are shuffled with, if Keras does not do it."""
        return None if self.order is None else self.order.seed

    def with_order_seed(self, seed: int | None) -> "WayBack":
        """Returns the way with the seed of the run that is restored."""
        if self.order is None or seed is None:
            return self
        order = dataclasses.replace(self.order, seed=seed)
        return dataclasses.replace(self, order=order)

    def iterable(
        self,
        stock: Callable[[], Any],
        number: int,
        distribute: Callable[[Any], Any],
    ) -> Any:
        """Returns what the iterator of a given number is made of.

        Args:
            stock: Callable that returns what Keras makes it of.
            number: Integer.
            distribute: Callable that gives workers their part of a dataset.
        """
        if self.order is None:
            return stock()
        return distribute(self.order.dataset(number))


def initial_way(epoch_iterator: Any) -> WayBack:
    """Returns the way back that the kind of data suggests.

    Args:
        epoch_iterator: What `fit` iterates over in each epoch.
    """
    dataset = _compat_fit.py_dataset(epoch_iterator)
    if dataset is not None:
        doubt = (
            f"{type(dataset).__name__} has no `get_state` and `set_state`: how "
            "Keras shuffles it is restored, and nothing that it does itself"
        )
        if hasattr(dataset, "get_state"):
            doubt = ""
        return WayBack(SKIP, "a PyDataset has no state of its own", doubt)
    if _compat_fit.is_array_data(epoch_iterator):
        return _array_way(epoch_iterator)
    doubt = ""
    options = getattr(_compat_fit.dataset_of(epoch_iterator), "options", None)
    if options is not None and options().deterministic is False:
        doubt = "the dataset is told to be not deterministic"
    elif _compat_fit.global_seed() is None:
        doubt = (
            "no global seed is set, so that later epochs may be shuffled "
            "differently; call `keras.utils.set_random_seed` before the data "
            "is made"
        )
    return WayBack(STATE, doubt=doubt)


def way_without_state(epoch_iterator: Any, cause: Any) -> WayBack:
    """Returns the way back where an iterator's state cannot be saved.

    Args:
        epoch_iterator: What `fit` iterates over in each epoch.
        cause: The error that saving raised, or a string that says why not.
    """
    reason = cause if isinstance(cause, str) else _first_line(cause)
    before = initial_way(epoch_iterator).doubt
    if "PyFunc" in reason:
        doubt = "the data comes from Python, whose order is its own matter"
        return WayBack(SKIP, reason, before or doubt)
    dataset = _compat_fit.dataset_of(epoch_iterator)
    if isinstance(cause, str):
        # A cache below a shuffle holds what only a full pass fills.
        is_filled = isinstance(dataset, tf.data.Dataset) and (
            {"Cache", "Shuffle"} <= set(_compat_fit.dataset_stages(dataset))
        )
        return WayBack(REPLAY if is_filled else SKIP, reason, before)
    # Their state is in variables, which every batch moves on.
    keeps_variables = any(name in reason for name in ("Rng", "ReadVariable"))
    return WayBack(REPLAY if keeps_variables else SKIP, reason, before)


def _array_way(epoch_iterator: Any) -> WayBack:
    reason = "the order of arrays is a matter of seeds"
    arrays, rows, batch_size, shuffle = _compat_fit.array_data(epoch_iterator)
    if not shuffle or _compat_fit.global_seed() is not None:
        return WayBack(SKIP, reason)
    if shuffle == "batch" or not ArrayOrder.takes(arrays):
        doubt = "no global seed is set, so that arrays are shuffled differently"
        return WayBack(SKIP, reason, doubt)
    order = ArrayOrder(arrays, rows, batch_size, secrets.randbits(31))
    return WayBack(SKIP, "arrays are shuffled by a seed of this run", "", order)


def _first_line(error: Any) -> str:
    text = str(getattr(error, "message", None) or error)
    return text.splitlines()[0][:200] if text else type(error).__name__
