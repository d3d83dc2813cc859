"""Variables that are used together, and leave the device together."""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Sequence
import functools
import threading
from typing import Any

import keras

from keras_tfopt.memory.eviction import Eviction
from keras_tfopt.memory.eviction import Store
from keras_tfopt.memory.eviction import evictable
from keras_tfopt.memory.eviction import size_of

# Of Keras' optimizers, Adam has most: three with `amsgrad`.
_MOST_SLOTS = 3


class SwapGroup:
    """One group of a `SwapManager`.

    Args:
        name: String.
        variables: Callable that returns the variables, which may become more.
        make_store: Callable that makes a `Store`.
        on_touch: Callable that is called when Python uses a variable that is
            away.

    Attributes:
        name: As given.
        pins: Integer. Uses that are going on; a group in use stays.
        last_use: Integer. Grows with each use.
        is_arriving: Boolean. Whether another thread brings it back.
        lock: Lock to hold while the group moves.
    """

    def __init__(
        self,
        name: str,
        variables: Callable[[], Sequence[Any]],
        make_store: Callable[[], Store],
        on_touch: Callable[[], None],
    ) -> None:
        self.name = name
        self.pins = 0
        self.last_use = 0
        self.is_arriving = False
        self.lock = threading.RLock()
        self._variables = variables
        self._make_store = make_store
        self._on_touch = on_touch
        self._eviction: Eviction | None = None
        self._size = (0, 0)

    @property
    def is_resident(self) -> bool:
        """Whether all values are on the device."""
        return self._eviction is None or not self._eviction.is_away

    @property
    def takes_room(self) -> bool:
        """Whether the device has room for the values, or gives it soon."""
        return self.is_resident or self.is_arriving

    @property
    def bytes(self) -> int:
        """What the values take of the device when they are there."""
        if self._eviction is not None:
            return self._eviction.bytes
        variables = self._variables()
        if len(variables) != self._size[0]:
            # To add them up takes as long as a small step.
            self._size = len(variables), sum(map(size_of, self.variables()))
        return self._size[1]

    def variables(self) -> list[Any]:
        """Returns the variables that can leave."""
        return evictable(self._variables())

    def evict(self) -> int:
        """Moves all values away, and returns the bytes."""
        self._eviction = Eviction(
            self.variables(), self._make_store(), self._on_touch
        )
        return self._eviction.bytes

    def stage(self) -> None:
        """Makes the values ready to come back, on the host."""
        if self._eviction is not None:
            self._eviction.stage()

    def restore(self) -> int:
        """Brings all values back, and returns the bytes."""
        if self._eviction is None:
            return 0
        self._eviction.restore()
        moved, self._eviction = self._eviction.bytes, None
        return moved


def variables_getter(
    variables: keras.Model | Sequence[Any],
) -> Callable[[], Sequence[Any]]:
    """Returns a function that returns the variables of a group.

    Args:
        variables: A built model, whose weights, slots and metrics are found
            anew each time; or a sequence of variables.

    Raises:
        ValueError: If a model is not built.
    """
    if not isinstance(variables, keras.Model):
        fixed = list(variables)
        return lambda: fixed
    model: Any = variables
    if not model.built:
        raise ValueError(
            "The size of a group must be known. Received: model "
            f"'{model.name}', which is not built. Expected: a model that was "
            "built, or called on a batch."
        )
    return functools.partial(_variables_of, model)


def check_disjoint(added: SwapGroup, groups: Iterable[SwapGroup]) -> None:
    """Raises if a variable of a group is in another one.

    Args:
        added: `SwapGroup`.
        groups: The others.

    Raises:
        ValueError: If one is.
    """
    owners = {
        id(variable): group.name
        for group in groups
        for variable in group.variables()
    }
    for variable in added.variables():
        if id(variable) in owners:
            raise ValueError(
                "A variable is in one group only. Received: "
                f"{variable.name} for '{added.name}', which is in "
                f"'{owners[id(variable)]}'. Expected: another variable."
            )


def unbuilt_bytes(variables: keras.Model | Sequence[Any]) -> int:
    """Returns what the slots of a group are going to take, at most."""
    if not isinstance(variables, keras.Model):
        return 0
    model: Any = variables
    if model.optimizer is None or model.optimizer.built:
        return 0
    return _MOST_SLOTS * sum(map(size_of, evictable(model.trainable_variables)))


def _variables_of(model: keras.Model) -> list[Any]:
    """Returns the variables of a model and of what trains it."""
    optimizer = model.optimizer
    if optimizer is not None and not optimizer.built:
        # A step must find all the room that it needs.
        optimizer.build(model.trainable_variables)
    return [
        *model.variables,
        *(optimizer.variables if optimizer is not None else ()),
        *model.metrics_variables,
    ]
