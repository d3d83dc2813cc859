"""The private names of Keras and TensorFlow that the package needs.

Each stands here once, with the reason, and `tests/test_compat.py` fails when
one moves or changes its meaning.
"""

from collections.abc import Callable
from collections.abc import Iterator
import contextlib
import math
import re
from typing import Any

import keras

# Where Keras divides losses by the number of replicas.
from keras.src.losses import loss as loss_module

# `keras.Model(inputs, outputs)` returns this class, which has no public name;
# a functional `AccumModel` must inherit from it.
from keras.src.models.functional import Functional as Functional

# Tells `Model(inputs, outputs)` from the constructor of a subclass.
from keras.src.models.model import (
    functional_init_arguments as functional_init_arguments,
)
import tensorflow as tf

# XLA's own format: what it fused stands nowhere else but in its text.
from tensorflow.compiler.xla import xla_data_pb2
from tensorflow.compiler.xla.service import hlo_pb2

# The only place that tells how much of a GPU TensorFlow may take.
from tensorflow.python.client import device_lib

# The only place that tells whether TensorFlow has read its flags.
from tensorflow.python.eager import context

# TensorFlow's own table of which operations read and which write a resource;
# it alone covers control flow and function calls.
from tensorflow.python.framework import auto_control_deps_utils


def forward(model: keras.Model, x: Any, training: bool = True) -> Any:
    """Calls a model, as Keras' `train_step` does."""
    # Keras passes `training` only where `call` accepts it.
    if model._call_has_training_arg:
        return model(x, training=training)
    return model(x)


def compute_loss(
    model: keras.Model,
    x: Any,
    y: Any,
    y_pred: Any,
    sample_weight: Any,
    training: bool = True,
) -> tf.Tensor:
    """Computes a model's total loss, whichever signature it overrides."""
    # `_compute_loss` bridges overrides without the `training` argument.
    return model._compute_loss(
        x=x,
        y=y,
        y_pred=y_pred,
        sample_weight=sample_weight,
        training=training,
    )


def update_loss_tracker(model: keras.Model, loss: tf.Tensor, x: Any) -> None:
    """Updates the metric behind `logs["loss"]`."""
    # Keras does this in `train_step`, for which we stand in.
    first = next(leaf for leaf in keras.tree.flatten(x) if leaf is not None)
    model._loss_tracker.update_state(loss, sample_weight=tf.shape(first)[0])


def loss_trackers(model: keras.Model) -> list[keras.metrics.Metric]:
    """Returns the metrics behind the loss and the losses of the outputs."""
    # The bundle's own list has no public name that tells them apart.
    compiled = model._compile_loss
    outputs = [] if compiled is None else list(compiled.metrics)
    return [model._loss_tracker, *outputs]


def compilation_of(model: keras.Model) -> Any:
    """Returns an object that `compile` makes anew each time."""
    # Keras keeps no count of compilations.
    return model._loss_tracker


def strategy_of(model: keras.Model) -> tf.distribute.Strategy | None:
    """Returns the distribution strategy that a model was made under."""
    # `distribute_strategy` answers the default strategy where there is none.
    return model._distribute_strategy


def separate_collectives() -> None:
    """Gives the next mirrored strategy of the process keys of its own."""
    # Strategies on other devices would join each other's collectives.
    tf.distribute.MirroredStrategy._collective_key_base += 1000


def adds_by_halves(strategy: tf.distribute.Strategy) -> bool:
    """Whether a strategy adds up gradients with hierarchical copies."""
    operations = getattr(strategy.extended, "_cross_device_ops", None)
    return isinstance(operations, tf.distribute.HierarchicalCopyAllReduce)


@contextlib.contextmanager
def unscaled_losses() -> Iterator[None]:
    """Keeps Keras from dividing losses by the number of replicas.

    Undoing it later would need to know which parts of a loss were divided.
    """
    # All of Keras looks these two functions up in their module.
    scale = loss_module.scale_loss_for_distribution
    unscale = loss_module.unscale_loss_for_distribution
    loss_module.scale_loss_for_distribution = _same
    loss_module.unscale_loss_for_distribution = _same
    try:
        yield
    finally:
        loss_module.scale_loss_for_distribution = scale
        loss_module.unscale_loss_for_distribution = unscale


def _same(value: Any) -> Any:
    return value


@contextlib.contextmanager
def without_reduction(
    optimizer: keras.optimizers.Optimizer,
) -> Iterator[None]:
    """Keeps an optimizer from adding up gradients over replicas.

    It would do so after it has clipped them and looked for infinity. It must be
    entered outside of the replicas, which share the optimizer.
    """
    while isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        optimizer = optimizer.inner_optimizer
    # Past `__setattr__`, which would start to track it.
    vars(optimizer)["_all_reduce_sum_gradients"] = _same
    try:
        yield
    finally:
        del vars(optimizer)["_all_reduce_sum_gradients"]


def stock_function(model: keras.Model, step: Callable) -> Callable:
    """Returns the function that Keras makes of a training or test step."""
    # `make_train_function` would put it on the model.
    return model._make_function(step)


def has_seed(layer: keras.layers.Layer) -> bool:
    """Whether a layer draws from a seed generator of its own."""
    # `variables` does not tell seeds from other state.
    return bool(layer._seed_generators)


def compile_loss(model: keras.Model) -> keras.losses.Loss | None:
    """Returns the loss that `compile` made of the `loss` argument."""
    # It alone matches losses, targets, weights and outputs of any structure.
    return model._compile_loss


def set_compile_loss(model: keras.Model, loss: keras.losses.Loss) -> None:
    """Puts another object in the place of the compiled loss."""
    # Past `__setattr__`, which would start to track it.
    vars(model)["_compile_loss"] = loss


def clone_loss(loss: keras.losses.Loss) -> keras.losses.Loss:
    """Copies a loss, sharing what it holds."""
    # `copy.copy` goes through the saving machinery of `KerasSaveable`.
    clone = object.__new__(type(loss))
    vars(clone).update(vars(loss))
    return clone


def flat_losses(loss: keras.losses.Loss) -> list:
    """Returns the entries of a compiled loss, in the order of its calls."""
    return loss._flat_losses


def replace_flat_losses(
    loss: keras.losses.Loss,
    terms: list[Callable[..., tf.Tensor]],
    trackers: list,
) -> None:
    """Gives a cloned compiled loss other terms and per-output trackers."""
    # The named tuples carry path, weight and name of each output.
    loss._flat_losses = [
        entry._replace(loss=term)
        for entry, term in zip(loss._flat_losses, terms, strict=True)
    ]
    loss._metrics = trackers


def get_mask(tensor: Any) -> Any:
    """Returns the Keras mask that rides on a tensor, or `None`."""
    return getattr(tensor, "_keras_mask", None)


def set_mask(tensor: Any, mask: Any) -> None:
    """Attaches a Keras mask to a tensor."""
    # Losses report `ignore_class` in this way; there is no public setter.
    if mask is not None:
        tensor._keras_mask = mask


def stored_value(variable: keras.Variable) -> Any:
    """Returns the value of a variable, whatever scope is active."""
    # `value` asks the active scope, which asks here.
    if variable._value is None:
        return variable._initializer(variable._shape, dtype=variable._dtype)
    return variable._value


def layers_of(model: keras.Model) -> Iterator[keras.layers.Layer]:
    """Iterates over a model and all layers in it, nested ones included."""
    # `Model.layers` is neither recursive nor does it hold the model itself.
    yield from model._flatten_layers()


def producer_of(tensor: keras.KerasTensor) -> Any:
    """Returns the layer or operation that made a symbolic tensor."""
    # The only link from a functional model's output to its layer.
    return tensor._keras_history.operation


def own_variables(layer: keras.layers.Layer) -> list[keras.Variable]:
    """Returns the variables of a layer without those of its sublayers."""
    # Also those of its seed generators, which `variables` mixes with others.
    return [
        *layer._trainable_variables,
        *layer._non_trainable_variables,
        *(generator.state for generator in layer._seed_generators),
    ]


def count_added_losses(layer: keras.layers.Layer) -> int:
    """How often `add_loss` of a layer was called in a collecting scope."""
    # Its activity regularizer comes this way, too.
    return len(layer._loss_ids)


def averages_activity_losses() -> bool:
    """Whether Keras divides an activity regularizer by the rows."""
    # Since Keras 3.14; before, it is the sum that the regularizer returns.
    major, minor = keras.__version__.split(".")[:2]
    return (int(major), int(minor)) >= (3, 14)


def metric_function(metric: keras.metrics.Metric) -> Callable | None:
    """Returns the function that a metric averages, or `None`."""
    return getattr(metric, "_fn", None)


def set_metric_function(metric: keras.metrics.Metric, function: Any) -> None:
    """Replaces the function that a metric averages."""
    metric._fn = function


def flat_metrics(model: keras.Model) -> list[keras.metrics.Metric]:
    """Returns the metrics given to `compile`, one by one."""
    # `Model.metrics` holds them bundled in one object.
    bundle = model._compile_metrics
    return [] if bundle is None else list(bundle.metrics)


def has_stock_moments(layer: keras.layers.BatchNormalization) -> bool:
    """Whether a layer computes its batch moments as Keras does."""
    return type(layer)._moments is keras.layers.BatchNormalization._moments


def batch_moments(layer: keras.layers.BatchNormalization) -> Callable:
    """Returns the method `(inputs, mask) -> (mean, variance)` of a layer."""
    # The one place that sees the inputs, the mask and both moments.
    return layer._moments


def set_batch_moments(
    layer: keras.layers.BatchNormalization, method: Callable | None
) -> None:
    """Replaces that method on one layer, or gives Keras' own back."""
    if method is None:
        del vars(layer)["_moments"]
    else:
        vars(layer)["_moments"] = method


def written_resources(operation: tf.Operation) -> list[tf.Tensor]:
    """Returns the resource inputs that an operation may write."""
    _, writes = auto_control_deps_utils.get_read_write_resource_inputs(
        operation
    )
    return list(writes)


def called_graphs(operation: tf.Operation) -> list[tf.Graph]:
    """Returns the graphs of the functions that an operation calls."""
    # Only the graph knows the bodies of conditionals, loops and calls.
    functions = [
        function
        for attribute in operation.node_def.attr.values()
        for function in (attribute.func, *attribute.list.func)
        if function.name
    ]
    return [operation.graph._get_function(f.name).graph for f in functions]


def device_memory_limit(device: str) -> int | None:
    """Returns what TensorFlow may take of a device, in bytes."""
    limits = {
        entry.name.rpartition("device:")[-1]: entry.memory_limit
        for entry in device_lib.list_local_devices()
    }
    return limits.get(device.rpartition("device:")[-1].removeprefix("/"))


def device_descriptions() -> dict[str, str]:
    """Returns what TensorFlow says about its devices, by their short names."""
    # Of a GPU, its place on the PCI bus, which no public function tells.
    return {
        entry.name.rpartition("device:")[-1]: entry.physical_device_desc
        for entry in device_lib.list_local_devices()
    }


def held_functions() -> int:
    """Returns how many functions TensorFlow holds for this process."""
    # Each trace of a `tf.function` adds some, whoever made it.
    return len(context.context().list_function_names())


def is_started() -> bool:
    """Whether TensorFlow has started its devices."""
    return context.context()._context_handle is not None


def parse_hlo(serialized: bytes) -> Any:
    """Returns the module that XLA serialized."""
    return hlo_pb2.HloProto.FromString(serialized).hlo_module


def hlo_shape_bytes(shape: Any) -> int:
    """Returns the bytes of an array in XLA's format; 0 for other values."""
    name = xla_data_pb2.PrimitiveType.Name(shape.element_type)
    # XLA's names of types end with their bits; predicates take a byte.
    digits = re.search(r"\d+", name)
    bits = int(digits[0]) if digits else 8 * (name == "PRED")
    return math.prod(shape.dimensions) * bits // 8


def tracker_of(optimizer: keras.optimizers.Optimizer) -> Any:
    """Returns what registers the variables of an optimizer."""
    # An optimizer whose `build` failed half-way can only be mended with it.
    return optimizer._tracker


def untracked(container: Any) -> Any:
    """Returns the container inside of one by which TensorFlow tracks it."""
    # Both wrap what Keras holds by itself too: `ListWrapper`, `_DictWrapper`.
    storage = getattr(container, "_storage", container)
    return getattr(storage, "__wrapped__", storage)
