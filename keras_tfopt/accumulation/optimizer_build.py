"""Building an optimizer: all of its slots, or none."""

from collections.abc import Callable
import gc
from typing import Any

import keras

from keras_tfopt import _compat
from keras_tfopt import _compat_memory
from keras_tfopt.errors import OutOfMemoryError
from keras_tfopt.errors import allocation_line
from keras_tfopt.errors import is_out_of_memory


def build_optimizer(
    optimizer: keras.optimizers.Optimizer,
    variables: list[keras.Variable],
    device: str | None = None,
) -> None:
    """Builds an optimizer, and takes it back if memory runs out half-way.

    Keras counts an optimizer as built as soon as it starts to make slots, so
    that one which failed would train without the rest of them.

    Args:
        optimizer: The optimizer. Nothing happens if it is built.
        variables: List of the variables that it shall update.
        device: String. Where to make its slots. Defaults to where the variables
            are.

    Raises:
        OutOfMemoryError: If the slots do not fit, also when memory that is no
            longer used has been set free. The optimizer is as before.
    """
    if optimizer.built:
        return
    error = _try_to_build(optimizer, variables, device)
    if error is None:
        return
    gc.collect()
    error = _try_to_build(optimizer, variables, device)
    if error is None:
        return
    count = sum(variable.value.shape.num_elements() for variable in variables)
    raise OutOfMemoryError(
        "The slots of the optimizer do not fit into memory. Received: "
        f"{type(optimizer).__name__} for {len(variables)} variables of "
        f"{count} elements. Expected: room for the optimizer's slots, whatever "
        "the micro-batch. Free memory, or choose an optimizer with fewer "
        "slots. Nothing was changed. TensorFlow says: "
        f"{allocation_line(error)}"
    ) from error


def _try_to_build(
    optimizer: keras.optimizers.Optimizer,
    variables: list[keras.Variable],
    device: str | None,
) -> Exception | None:
    undo = [
        action
        for owner in _parts(optimizer)
        for action in _restorers(vars(owner))
    ]
    try:
        with _compat_memory.slots_on(innermost(optimizer), device):
            optimizer.build(variables)
    except Exception as error:
        for action in undo:
            action()
        if not is_out_of_memory(error):
            raise
        return error.with_traceback(None)
    return None


def innermost(
    optimizer: keras.optimizers.Optimizer,
) -> keras.optimizers.Optimizer:
    """Returns an optimizer, or the one inside of a `LossScaleOptimizer`."""
    while isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        optimizer = optimizer.inner_optimizer
    return optimizer


def _parts(optimizer: keras.optimizers.Optimizer) -> list[Any]:
    parts = [optimizer, _compat.tracker_of(optimizer)]
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        parts += _parts(optimizer.inner_optimizer)
    return parts


def _restorers(container: Any) -> list[Callable[[], None]]:
    """Returns what puts back the contents of containers inside a container."""
    # By the methods of the base class: those of Keras' tracked containers
    # refuse to change once the optimizer is built.
    container = _compat.untracked(container)
    saved = container.copy()
    if isinstance(container, list):
        return [lambda: list.__setitem__(container, slice(None), saved)]
    if isinstance(container, set):
        return [lambda: _refill(container, saved, set)]
    inner = [
        action
        for value in saved.values()
        if isinstance(value, (dict, list, set))
        for action in _restorers(value)
    ]
    return [*inner, lambda: _refill(container, saved, dict)]


def _refill(container: Any, saved: Any, kind: Any) -> None:
    kind.clear(container)
    kind.update(container, saved)
