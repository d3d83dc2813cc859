"""The private names that recomputing a forward pass needs."""

from collections.abc import Callable
from collections.abc import Iterator
import contextlib
import copy
from typing import Any

import keras

# Holds what an outer call of a layer tells inner ones, `training` above all,
# and the precision that variables are cast to.
from keras.src.backend.common import global_state
from keras.src.layers.layer import CallContext
import tensorflow as tf

# `GradientTape.stop_recording` stops one tape; here all must stop.
from tensorflow.python.eager import record

# The only place that tells, while a graph is built, whether XLA will get it.
from tensorflow.python.ops import control_flow_util

_CALL = "current_call_ctx"
_AUTOCAST = "autocast_scope"


def stop_recording() -> contextlib.AbstractContextManager:
    """Keeps what runs inside out of all gradient tapes."""
    return record.stop_recording()


def is_in_xla() -> bool:
    """Whether the graph that is being built is compiled by XLA."""
    if tf.executing_eagerly():
        return False
    graph = tf.compat.v1.get_default_graph()
    return control_flow_util.GraphOrParentsInXlaContext(graph)


def call_state() -> tuple[Any, Any]:
    """Returns what layers would see of the calls around them."""
    context = global_state.get_global_attribute(_CALL)
    # No layer compares equal to it, so that none takes itself for the one that
    # opened the context, which it would clear of losses.
    context = CallContext(None) if context is None else copy.copy(context)
    context.entry_layer = object()
    return context, global_state.get_global_attribute(_AUTOCAST)


@contextlib.contextmanager
def restored_call_state(state: tuple[Any, Any]) -> Iterator[None]:
    """Lets layers see what `call_state` returned."""
    context, autocast = state
    saved = [global_state.get_global_attribute(n) for n in (_CALL, _AUTOCAST)]
    # A copy: calls inside would write into it.
    global_state.set_global_attribute(_CALL, copy.copy(context))
    global_state.set_global_attribute(_AUTOCAST, autocast)
    try:
        yield
    finally:
        global_state.set_global_attribute(_CALL, saved[0])
        global_state.set_global_attribute(_AUTOCAST, saved[1])


def take_loss(layer: keras.layers.Layer, loss: Any) -> bool:
    """Whether a layer added a loss, which it then forgets."""
    # A collecting scope holds the losses, and the layer their ids.
    if id(loss) not in layer._loss_ids:
        return False
    layer._loss_ids.discard(id(loss))
    return True


def functional_of(model: keras.Model) -> keras.Model | None:
    """Returns the functional model that runs a model, or `None`."""
    if isinstance(model, keras.Sequential):
        # None where its layers cannot be traced.
        return model._functional
    return model if hasattr(model, "_run_through_graph") else None


def ordered_nodes(model: keras.Model) -> list[Any]:
    """Returns the nodes of a functional model in the order of their calls."""
    # `Model.operations` has each operation once, however often it is called.
    by_depth = model._nodes_by_depth
    return [
        node
        for depth in sorted(by_depth, reverse=True)
        for node in by_depth[depth]
        if node.operation and not node.is_input
    ]


def graph_inputs(model: keras.Model) -> list[Any]:
    """Returns the symbolic inputs of a functional model's graph."""
    # `Model.inputs` may be shown to users in another order.
    return model._inputs


def pack_outputs(model: keras.Model, outputs: list[Any]) -> Any:
    """Returns outputs in the structure of a functional model's outputs."""
    return keras.tree.pack_sequence_as(model._outputs_struct, outputs)


def run_through_graph(model: keras.Model) -> Callable:
    """Returns the method by which a functional model runs its nodes."""
    return model._run_through_graph


def set_run_through_graph(model: keras.Model, method: Callable | None) -> None:
    """Replaces that method on one model, or gives Keras' own back."""
    if method is None:
        del vars(model)["_run_through_graph"]
    else:
        # Past `__setattr__`, which would start to track it.
        vars(model)["_run_through_graph"] = method
