"""A scope that keeps every write of a forward pass out of the variables."""

from typing import Any

import keras
import tensorflow as tf

from keras_tfopt import _compat


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
        self.written: list[keras.Variable] = []

    def add_update(self, update: tuple[keras.Variable, Any]) -> None:
        """Records a write instead of doing it."""
        variable, value = update
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
