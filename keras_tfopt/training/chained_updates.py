"""Optimizer updates one variable after the other, for their memory."""

from collections.abc import Callable
from collections.abc import Iterator
import contextlib
from typing import Any

import keras
import tensorflow as tf

from keras_tfopt.accumulation.optimizer_build import innermost
from keras_tfopt.devices import at


@contextlib.contextmanager
def chained_updates(
    optimizer: keras.optimizers.Optimizer,
    place: Callable[[Any], str] | None = None,
) -> Iterator[None]:
    """Makes an optimizer update its variables in a chain.

    In a graph, Keras' updates do not depend on each other, and TensorFlow may
    hold the temporaries of all variables at once. In a chain there are those of
    one variable at a time, and the results are the same.

    Args:
        optimizer: The optimizer; inside a `LossScaleOptimizer` the inner one
            is chained.
        place: Callable from a variable to the device that computes its update,
            which is assigned where the variable is. Defaults to where
            TensorFlow puts it.
    """
    optimizer = innermost(optimizer)
    update_step = optimizer.update_step
    previous: dict[str, list[tf.Operation]] = {}

    def update(gradient: Any, variable: Any, learning_rate: Any) -> None:
        placed = at(place(variable) if place else None)
        if tf.executing_eagerly():
            with placed:
                update_step(gradient, variable, learning_rate)
            return
        graph = tf.compat.v1.get_default_graph()
        known = len(graph.get_operations())
        # The copies of a variable on other devices have their own memory.
        owner = variable.device
        with tf.control_dependencies(previous.get(owner, [])), placed:
            update_step(gradient, variable, learning_rate)
        writes = writing_operations(known)
        if not writes:
            raise RuntimeError(
                f"{type(optimizer).__name__}.update_step wrote nothing for "
                f"variable '{variable.name}'. Expected: an assignment."
            )
        previous[owner] = writes

    # Past `__setattr__`, which would start to track it.
    attributes = vars(optimizer)
    own = attributes.get("update_step")
    attributes["update_step"] = update
    try:
        yield
    finally:
        if own is None:
            del attributes["update_step"]
        else:
            attributes["update_step"] = own


def writing_operations(known: int) -> list[tf.Operation]:
    """Returns the operations of the default graph that may write a variable.

    Args:
        known: Number of operations, from the first, to leave out.
    """
    graph = tf.compat.v1.get_default_graph()
    return [
        operation
        for operation in graph.get_operations()[known:]
        if _may_write(operation)
    ]


def _may_write(operation: tf.Operation) -> bool:
    takes_resource = any(
        tensor.dtype == tf.resource for tensor in operation.inputs
    )
    return takes_resource and operation.type != "ReadVariableOp"
