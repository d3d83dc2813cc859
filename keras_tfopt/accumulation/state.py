"""What a split step may do with the state that a forward pass writes.

A state that counts forward passes would count micro-batches. So a split step
only accepts writes whose meaning it knows, and names and refuses all others.
"""

from typing import Any

import keras

from keras_tfopt import _compat
from keras_tfopt.accumulation import batch_norm

_ROW_STATE_LAYERS: list[type] = []


def register_row_state(layer_class: type) -> type:
    """Declares that a layer's state goes on exactly from micro-batch to next.

    Use it for a layer whose state after rows A and then rows B equals its state
    after A and B together: sums and counts over rows, for example. Such a state
    is carried through the micro-batches of a step like that of a metric. Any
    other state that a forward pass writes is refused when batches are split.

    Example:

    ```python
    import keras
    from keras_tfopt import register_row_state

    @register_row_state
    class RowCounter(keras.layers.Layer):
        def build(self, input_shape):
            self.rows = self.add_weight(
                shape=(), initializer="zeros", trainable=False
            )

        def call(self, inputs):
            self.rows.assign_add(
                keras.ops.cast(keras.ops.shape(inputs)[0], "float32")
            )
            return inputs
    ```

    Args:
        layer_class: Class of the layer. Subclasses are included.

    Returns:
        The class, so that it can be used as a decorator.

    Raises:
        TypeError: If `layer_class` is not a class of Keras layers.
    """
    if not isinstance(layer_class, type) or not issubclass(
        layer_class, keras.layers.Layer
    ):
        raise TypeError(
            "Invalid value for argument `layer_class`. "
            f"Received: layer_class={layer_class!r}. "
            "Expected: a subclass of keras.layers.Layer."
        )
    _ROW_STATE_LAYERS.append(layer_class)
    return layer_class


class StateRules:
    """Sorts the variables that a model's forward pass writes.

    Args:
        model: A built Keras model.
        written: List of the variables that its training step writes, apart
            from the optimizer's.

    Attributes:
        carried: Variables whose value goes on from micro-batch to micro-batch.
        normalizers: BatchNormalization layers whose statistics are merged.
        refused: One description for each variable that cannot be split.
    """

    def __init__(
        self, model: keras.Model, written: list[keras.Variable]
    ) -> None:
        self.carried: list[keras.Variable] = []
        self.normalizers: list[keras.layers.BatchNormalization] = []
        self.refused: list[str] = []
        self._owners = _owners(model)
        self._metrics = {id(v) for v in model.metrics_variables}
        for variable in written:
            self._sort(variable)

    def _sort(self, variable: keras.Variable) -> None:
        owner = self._owners.get(id(variable))
        if id(variable) in self._metrics or is_seed(variable):
            self.carried.append(variable)
        elif owner is not None and batch_norm.is_mergeable(owner):
            if all(owner is not known for known in self.normalizers):
                self.normalizers.append(owner)
        elif isinstance(owner, tuple(_ROW_STATE_LAYERS)):
            self.carried.append(variable)
        else:
            self.refused.append(_describe(variable, owner))


def layer_state(model: keras.Model, written: list[keras.Variable]) -> list[str]:
    """Describes the variables, among those written, that are not metrics'.

    Args:
        model: A built Keras model.
        written: As for `StateRules`.
    """
    metrics = {id(variable) for variable in model.metrics_variables}
    owners = _owners(model)
    return [
        _describe(variable, owners.get(id(variable)))
        for variable in written
        if id(variable) not in metrics
    ]


def _owners(model: keras.Model) -> dict[int, keras.layers.Layer]:
    return {
        id(variable): layer
        for layer in _compat.layers_of(model)
        for variable in _compat.own_variables(layer)
    }


def is_seed(variable: keras.Variable) -> bool:
    """Whether a variable is the state of a seed generator."""
    # Each draw advances it: fresh numbers in each micro-batch, reproducible
    # from the seed.
    return variable.name == "seed_generator_state" and not variable.trainable


def _describe(variable: keras.Variable, owner: Any) -> str:
    if owner is None:
        return f"variable '{variable.path}', which no layer tracks"
    return (
        f"variable '{variable.name}' of layer '{owner.name}' "
        f"({type(owner).__name__})"
    )
