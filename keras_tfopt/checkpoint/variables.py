"""The variables of a training run: which they are, and their values."""

from collections import Counter
from collections.abc import Iterable
import dataclasses
import re
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_tfopt import _compat


@dataclasses.dataclass(frozen=True)
class VariableSpec:
    """What a variable must have in common with its backup.

    Attributes:
        path: String. What is before the name depends on who made the variable.
        name: String. End of the path, without the numbers that Keras gives
            equal names.
        shape: Tuple of integers.
        dtype: String.
    """

    path: str = dataclasses.field(compare=False)
    name: str = dataclasses.field(init=False)
    shape: tuple[int, ...]
    dtype: str

    def __post_init__(self) -> None:
        name = self.path.rpartition("/")[2]
        object.__setattr__(self, "name", re.sub(r"_\d+(?=_|:|$)", "", name))

    def __str__(self) -> str:
        """Returns the spec in words."""
        return f"{self.path} {self.dtype}{list(self.shape)}"


def variables_of(model: keras.Model) -> list[Any]:
    """Returns all variables that training may write, each once.

    Weights, state and seeds of layers, slots and counters of the optimizer,
    metrics, and TensorFlow's own variables that are attributes of layers.
    """
    optimizer = model.optimizer
    found = [
        *model.variables,
        *(optimizer.variables if optimizer is not None else ()),
        *model.metrics_variables,
    ]
    known = {id(_compat.stored_value(variable)) for variable in found}
    for tracked in tf.train.TrackableView(model).descendants():
        if isinstance(tracked, tf.Variable) and _is_numeric(tracked):
            if id(tracked) not in known:
                known.add(id(tracked))
                found.append(tracked)
    return list({id(variable): variable for variable in found}.values())


def split_by_owner(variables: list[Any]) -> tuple[list[Any], list[Any]]:
    """Returns what is equal on all replicas, and the rest in its parts.

    To read a variable that replicas add up is a collective, and its value does
    not tell the parts.

    Args:
        variables: List of variables.

    Returns:
        Two lists: variables, and TensorFlow's variables of the replicas of this
        process.
    """
    shared, own = [], []
    for variable in variables:
        stored = _stored(variable)
        if _is_summed(stored):
            strategy = stored.distribute_strategy
            own += strategy.experimental_local_results(stored)
        else:
            shared.append(variable)
    return shared, own


def specs_of(variables: list[Any]) -> list[VariableSpec]:
    """Returns the specs of variables."""
    return [
        VariableSpec(
            getattr(variable, "path", variable.name),
            tuple(variable.shape),
            tf.as_dtype(variable.dtype).name,
        )
        for variable in variables
    ]


def snapshot(variables: list[Any]) -> list[Any]:
    """Returns the values of variables, unchanged by later steps.

    On a CPU nothing is copied now: TensorFlow copies a value that is still
    held when its variable is next written. On other devices the values are
    copied to the host.
    """
    values = []
    for variable in variables:
        stored = _stored(variable)
        value = stored.read_value()
        is_on_host = "CPU" in value.device
        values.append(value if is_on_host else value.numpy())
    return values


def assign(variables: list[Any], values: list[np.ndarray]) -> None:
    """Writes values into variables."""
    for variable, value in zip(variables, values, strict=True):
        _stored(variable).assign(value)


def check_specs(saved: list[VariableSpec], current: list[VariableSpec]) -> None:
    """Raises if a backup is one of another model.

    Args:
        saved: List of `VariableSpec` in the backup.
        current: List of `VariableSpec` of the model.

    Raises:
        ValueError: Names the differences.
    """
    if saved == current:
        return
    shown = "; ".join(_differences(saved, current))
    raise ValueError(
        "The backup is one of another model or optimizer. Received: "
        f"{shown}. Expected: the variables of the backup, in their order. "
        "Make the model and its optimizer as they were, or use another "
        "`backup_dir`."
    )


def _differences(
    saved: list[VariableSpec], current: list[VariableSpec]
) -> list[str]:
    if [spec.name for spec in saved] == [spec.name for spec in current]:
        return _shortened(
            f"{before} in the backup is {after} here"
            for before, after in zip(saved, current, strict=True)
            if before != after
        )
    missing = (Counter(saved) - Counter(current)).elements()
    added = (Counter(current) - Counter(saved)).elements()
    lines = _shortened(f"{spec} is only in the backup" for spec in missing)
    lines += _shortened(f"{spec} is only in the model" for spec in added)
    return lines or ["the same variables in another order"]


def _shortened(lines: Iterable[str], most: int = 4) -> list[str]:
    lines = list(lines)
    return lines if len(lines) <= most else [*lines[:most], "..."]


def _stored(variable: Any) -> Any:
    if isinstance(variable, tf.Variable):
        return variable
    return _compat.stored_value(variable)


def _is_summed(stored: Any) -> bool:
    return (
        isinstance(stored, tf.distribute.DistributedValues)
        and stored.synchronization is tf.VariableSynchronization.ON_READ
    )


def _is_numeric(variable: tf.Variable) -> bool:
    return variable.dtype not in (tf.string, tf.resource, tf.variant)
