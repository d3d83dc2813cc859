"""Which variables of a model are on the device, and which on the host."""

from collections.abc import Iterator
from typing import Any
import warnings

import keras

from keras_tfopt import _compat
from keras_tfopt import _compat_memory
from keras_tfopt.accumulation.host_memory import HOST
from keras_tfopt.accumulation.host_memory import is_on_host
from keras_tfopt.accumulation.host_memory import is_worth_moving
from keras_tfopt.memory.limit import default_device
from keras_tfopt.plan import ExecutionPlan

_ATTRIBUTE = "_keras_tfopt_placement"


class Placement:
    """Moves the variables of a model to where a plan wants them.

    TensorFlow's variables cannot move: Keras' variables get others. So what was
    traced before must be traced again, which `version` tells.

    Args:
        model: A compiled Keras model without a distribution strategy.

    Attributes:
        version: Integer. Grows when variables move.
    """

    def __init__(self, model: keras.Model) -> None:
        self._model = model
        self._followed: Any = (None, None)
        self._homes: dict[int, tuple[keras.Variable, str]] = {}
        self._has_warned = False
        self.version = 0

    def follow(self, plan: ExecutionPlan) -> None:
        """Moves what is not where a plan wants it.

        Args:
            plan: `ExecutionPlan`.
        """
        optimizer = self._model.optimizer
        wish = plan.offload, (id(optimizer), getattr(optimizer, "built", False))
        if wish == self._followed or wish[0] == self._followed[0] is None:
            return
        self._followed = wish
        if plan.offload is not None:
            self._warn_of_one_memory()
        away = {id(v): v for v in self._wanted(plan)}
        back = [h for key, h in self._homes.items() if key not in away]
        home = compute_device(self._model)
        for key, variable in away.items():
            known = self._homes.get(key, (variable, home or _device(variable)))
            self._homes[key] = known
        for variable, _ in back:
            del self._homes[id(variable)]
        moves = [
            (variable, device)
            for variable, device in [*((v, HOST) for v in away.values()), *back]
            if not _is_on(variable, device)
        ]
        for variable, device in moves:
            _compat_memory.move_variable(variable, device)
        if moves:
            self.version += 1
            # They are made again when they are needed.
            self._model.test_function = self._model.predict_function = None

    def _wanted(self, plan: ExecutionPlan) -> Iterator[keras.Variable]:
        if plan.offloads("slots"):
            yield from slots_of(self._model)
        if plan.offloads("frozen_weights"):
            yield from frozen_weights_of(self._model)

    def _warn_of_one_memory(self) -> None:
        if self._has_warned or not is_computed_on_host(self._model):
            return
        self._has_warned = True
        warnings.warn(
            f"'{self._model.name}' is on the device {HOST}, whose memory is "
            "that of the host: to offload saves nothing, and costs copies. "
            "Expected: a model on a GPU.",
            stacklevel=2,
        )


def placement_of(model: keras.Model) -> Placement:
    """Returns the placement of a model, of which there is one."""
    # Past `__setattr__`, which would start to track it.
    attributes = vars(model)
    if _ATTRIBUTE not in attributes:
        attributes[_ATTRIBUTE] = Placement(model)
    return attributes[_ATTRIBUTE]


def slots_of(model: keras.Model) -> list[keras.Variable]:
    """Returns the variables of a model's optimizer that are large."""
    return _large(getattr(model.optimizer, "variables", ()))


def frozen_weights_of(model: keras.Model) -> list[keras.Variable]:
    """Returns the large weights of a model's layers that do not train."""
    return _large(
        variable
        for layer in _compat.layers_of(model)
        if not layer.trainable
        for variable in layer.weights
    )


def bytes_of(variable: keras.Variable) -> int:
    """Returns the bytes of a variable's value."""
    stored = _stored(variable)
    return stored.shape.num_elements() * stored.dtype.size


def compute_device(model: keras.Model) -> str | None:
    """Returns the device of what a model trains; `None` if that is nothing."""
    for variable in model.trainable_variables:
        return _device(variable)
    return None


def is_computed_on_host(model: keras.Model) -> bool:
    """Whether there is no other memory than the host's."""
    return is_on_host(compute_device(model) or f"device:{default_device()}")


def _large(variables: Any) -> list[keras.Variable]:
    found = {id(v): v for v in variables if is_worth_moving(_stored(v))}
    return list(found.values())


def _is_on(variable: keras.Variable, device: str) -> bool:
    present = _device(variable)
    return is_on_host(present) if device == HOST else present == device


def _device(variable: keras.Variable) -> str:
    return _stored(variable).device


def _stored(variable: keras.Variable) -> Any:
    return _compat.stored_value(variable)
