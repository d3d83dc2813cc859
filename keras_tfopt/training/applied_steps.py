"""Which steps have been applied, for workers that run one again."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from keras_tfopt import _compat


class AppliedSteps:
    """Remembers on a parameter server which steps have updated the weights.

    A worker that dies after it has applied a step, and before the coordinator
    knows, leaves a step that another worker runs again. Its gradients must not
    be applied again.

    Args:
        strategy: `tf.distribute.ParameterServerStrategy`.
        places: Integer. At least the number of steps that are under way at the
            same time.
    """

    def __init__(self, strategy: tf.distribute.Strategy, places: int) -> None:
        self._places = places
        self._next = 0
        with strategy.scope():
            self._steps = tf.Variable(
                tf.fill([places], tf.constant(-1, tf.int64)), trainable=False
            )

    def new_step(self) -> tf.Tensor:
        """Returns the number of a step that is about to be handed out."""
        self._next += 1
        return tf.constant(self._next, tf.int64)

    def apply_once(self, step: tf.Tensor, apply: Callable[[], Any]) -> None:
        """Applies a step, while its graph is made, unless it was applied.

        Args:
            step: Int64 scalar.
            apply: Callable that writes.
        """
        place = step % self._places

        def write() -> tf.Tensor:
            apply()
            graph = tf.compat.v1.get_default_graph()
            writes = [
                operation
                for operation in graph.get_operations()
                if _compat.written_resources(operation)
            ]
            with tf.control_dependencies(writes):
                tf.raw_ops.ResourceScatterUpdate(
                    resource=self._steps.handle, indices=place, updates=step
                )
            return tf.constant(True)

        is_applied = tf.equal(self._steps[place], step)
        tf.cond(is_applied, lambda: tf.constant(False), write)
