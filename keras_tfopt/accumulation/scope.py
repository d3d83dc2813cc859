"""A scope that keeps every write of a forward pass out of the variables."""

from typing import Any

import keras
import tensorflow as tf

from keras_tfopt import _compat


class BranchWriteError(ValueError):
    """A variable is written where the new value cannot be seen."""


class RecordingScope(keras.StatelessScope):
    """A `StatelessScope` that remembers which variables were written.

    Keras' own scope forgets the variables that were not declared to it, so that
    their updates would be lost: the state of a stateful RNN, the global seed
    generator. This one keeps all.

    A layer may write a trainable variable in its forward pass
    (`SpectralNormalization`). The loss then depends on the new value, and so
    must the gradient: the new value is watched, as Keras' tape watches the
    variable.

    Args:
        state_mapping: List of `(variable, tensor)`. Values to use inside.
        tape: `tf.GradientTape` or `None`. Watches new values of trainable
            variables. Defaults to `None`.
    """

    def __init__(
        self,
        state_mapping: list[tuple[keras.Variable, Any]] | None = None,
        tape: tf.GradientTape | None = None,
    ) -> None:
        # Without `collect_losses`, `add_loss` and activity regularizers vanish.
        super().__init__(state_mapping, collect_losses=True)
        self._tape = tape
        self._graph: tf.Graph | None = None
        self.written: list[keras.Variable] = []

    def __enter__(self) -> "RecordingScope":
        """Starts to keep writes out."""
        self._graph = _current_graph()
        return super().__enter__()

    def add_update(self, update: tuple[keras.Variable, Any]) -> None:
        """Records a write instead of doing it.

        Raises:
            BranchWriteError: If the write stands in a conditional or a loop,
                whose values cannot be seen from outside.
        """
        variable, value = update
        if _current_graph() is not self._graph:
            raise BranchWriteError(
                "A step that writes nothing cannot follow a write in a branch "
                "of a conditional, in a loop or in a `tf.function`. Received: "
                f"an assignment of variable '{variable.path}' in one. "
                "Expected: all assignments outside. Return the new value from "
                "it and assign that."
            )
        if all(variable is not known for known in self.written):
            self.written.append(variable)
        if self._tape is not None and variable.trainable:
            value = tf.identity(tf.stop_gradient(value))
            self._tape.watch(value)
        super().add_update((variable, value))

    def get_current_value(self, variable: keras.Variable) -> Any:
        """Returns the value of a variable inside the scope.

        Keras' own scope answers `None` for an undeclared variable, which weight
        regularizers take for its value.
        """
        value = super().get_current_value(variable)
        return _compat.stored_value(variable) if value is None else value


def _current_graph() -> tf.Graph | None:
    if tf.executing_eagerly():
        return None
    return tf.compat.v1.get_default_graph()
