"""Rematerialization, attached to layers and models."""

from collections.abc import Callable
from collections.abc import Iterator
import contextlib
import functools
from typing import Any
from typing import TypeVar

import keras

from keras_tfopt import _compat
from keras_tfopt import _compat_remat
from keras_tfopt.accumulation.recomputation import Recomputed
from keras_tfopt.accumulation.segments import Segment
from keras_tfopt.accumulation.segments import SegmentedGraph
from keras_tfopt.accumulation.segments import every_segments
from keras_tfopt.accumulation.segments import named_segments
from keras_tfopt.accumulation.segments import replaced_graph
from keras_tfopt.plan import ExecutionPlan
from keras_tfopt.plan import Remat

_Target = TypeVar("_Target", bound=Callable)

# Of the layers in a model, the share that makes a nested one its main part.
_MAIN_SHARE = 0.5

# Holds what takes a persistent rematerialization back.
_ATTRIBUTE = "_keras_tfopt_remat"


def remat(target: _Target) -> _Target:
    """Recomputes a layer or a function in the backward pass.

    What the layer computes inside is not kept for its gradient but computed
    again when the gradient needs it, from the same inputs, weights and seeds.
    The result is the same, with less memory and more time. State such as moving
    statistics is updated once.

    It works in graphs, under XLA, and eagerly; in `fit`, in micro-batches, and
    in loops of your own. Unlike `keras.remat`, it draws the same dropout mask
    both times, passes `training` and `mask` on, and gives gradients inside of a
    stateless scope.

    A layer is changed in place, and is returned. It is saved and cloned as if
    nothing had happened; `remove_remat` takes it back.

    Example:

    ```python
    import keras
    from keras_tfopt import remat

    inputs = keras.Input((8,))
    block = keras.Sequential(
        [keras.layers.Dense(32, activation="gelu"), keras.layers.Dense(8)]
    )
    outputs = keras.layers.Dense(1)(remat(block)(inputs))
    model = keras.Model(inputs, outputs)
    ```

    Args:
        target: Keras layer or model, or a callable of nests of tensors.

    Returns:
        The layer, or a function in place of a callable. Gradients reach all
        variables and, in a graph, tensors from outside that a function uses;
        in eager mode pass such tensors as arguments.

    Raises:
        TypeError: If `target` is neither.

    Reference:
        Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016,
        https://arxiv.org/abs/1604.06174
    """
    if isinstance(target, keras.layers.Layer):
        drop_remat(target)
        _keep(target, [_recomputed_layer(target, ExecutionPlan())])
        return target
    if not callable(target):
        raise TypeError(
            "Invalid value for argument `target`. "
            f"Received: target={target!r} (of type {type(target).__name__}). "
            "Expected: a Keras layer or a callable."
        )
    return _wrapped(target, Recomputed(target))


def drop_remat(target: keras.layers.Layer) -> None:
    """Takes back what `remat` or `keep_remat` did to a layer or model.

    Args:
        target: Keras layer or model. Nothing happens if it has none.
    """
    undo = vars(target).pop(_ATTRIBUTE, None)
    if undo is not None:
        undo()
        _forget_functions(target)


def keep_remat(model: keras.Model, remat: Remat) -> None:
    """Rematerializes a model until `drop_remat`.

    Args:
        model: A built Keras model.
        remat: As for `ExecutionPlan`.

    Raises:
        ValueError: If the model has no such layers.
    """
    drop_remat(model)
    _keep(model, _attachments(model, ExecutionPlan(remat=remat)))


def check_remat(model: keras.Model, remat: Remat) -> None:
    """Raises if a built model has no such layers.

    Args:
        model: A built Keras model.
        remat: As for `ExecutionPlan`.

    Raises:
        ValueError: If there are none of these names, or in this number.
    """
    _attachments(model, ExecutionPlan(remat=remat))


@contextlib.contextmanager
def rematerialized(model: keras.Model, plan: ExecutionPlan) -> Iterator[None]:
    """Rematerializes a model for a while.

    Args:
        model: A built Keras model.
        plan: `ExecutionPlan`. Says what is computed again, and how.

    Raises:
        ValueError: If the model has no such layers.
    """
    with contextlib.ExitStack() as stack:
        for attachment in _attachments(model, plan):
            stack.enter_context(attachment)
        yield


def main_part(model: keras.Model) -> keras.Model:
    """Returns the nested model that most layers of a model are in, or it.

    A backbone in a model is one layer to it; to recompute all of it at once
    would save nothing.
    """
    count = len(list(_compat.layers_of(model)))
    for layer in model.layers:
        if not isinstance(layer, keras.Model) or not layer.built:
            continue
        if len(list(_compat.layers_of(layer))) - 1 > _MAIN_SHARE * count:
            return main_part(layer)
    return model


def _attachments(
    model: keras.Model, plan: ExecutionPlan
) -> list[contextlib.AbstractContextManager]:
    """Returns a context for each part to rematerialize."""
    remat = plan.remat
    if remat is None:
        return []
    part = main_part(model)
    functional = _compat_remat.functional_of(part)
    segments: list[Segment] = []
    if not isinstance(remat, int):
        layers = _named_layers(model, [n for n in remat if isinstance(n, str)])
        pairs = [pair for pair in remat if isinstance(pair, tuple)]
        if pairs and functional is None:
            raise ValueError(
                "Only a functional model has segments. Received: "
                f"{pairs} for the model '{model.name}' "
                f"({type(model).__name__}). Expected: names of layers."
            )
        if pairs:
            segments = named_segments(functional, pairs)
    elif functional is None:
        layers = _sublayers(part, remat)
    else:
        layers, segments = [], every_segments(functional, remat)
    attachments: list[contextlib.AbstractContextManager] = [
        _recomputed_layer(one, plan) for one in layers
    ]
    if segments:
        graph = SegmentedGraph(functional, segments, plan)
        attachments.append(replaced_graph(functional, graph))
    return attachments


@contextlib.contextmanager
def _recomputed_layer(
    layer: keras.layers.Layer, plan: ExecutionPlan
) -> Iterator[None]:
    """Recomputes a layer for a while."""
    attributes = vars(layer)
    names = [n for n in ("call", "quantized_call") if hasattr(layer, n)]
    saved = {name: attributes.get(name) for name in names}
    layers = list(_compat.layers_of(layer))
    for name in names:
        method = getattr(layer, name)
        recomputed = Recomputed(method, layers, plan)
        # Past `__setattr__`, which would start to track it.
        attributes[name] = _wrapped(method, recomputed)
    try:
        yield
    finally:
        for name, own in saved.items():
            if own is None:
                del attributes[name]
            else:
                attributes[name] = own


def _wrapped(function: Any, recomputed: Recomputed) -> Any:
    """Returns a function that looks like another."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return recomputed(*args, **kwargs)

    return wrapper


def _sublayers(model: keras.Model, every: int) -> list[keras.layers.Layer]:
    """Returns the layers of a model whose calls cannot be foreseen."""
    if every == 1 and model.layers:
        return list(model.layers)
    raise ValueError(
        "Layers can be recomputed together where it is known which one calls "
        f"which. Received: remat={every} for the model '{model.name}' "
        f"({type(model).__name__}), which is not functional and has "
        f"{len(model.layers)} layers. Expected: 1, or names of layers."
    )


def _named_layers(
    model: keras.Model, names: list[str]
) -> list[keras.layers.Layer]:
    layers = {layer.name: layer for layer in _compat.layers_of(model)}
    unknown = [name for name in names if name not in layers]
    if unknown:
        raise ValueError(
            f"There are no layers to recompute. Received: {unknown} for the "
            f"model '{model.name}'. Expected: names of its layers, which are "
            f"{sorted(layers)}."
        )
    return [layers[name] for name in names]


def _keep(
    target: keras.layers.Layer,
    attachments: list[contextlib.AbstractContextManager],
) -> None:
    with contextlib.ExitStack() as stack:
        for attachment in attachments:
            stack.enter_context(attachment)
        # Past `__setattr__`, which would start to track it.
        vars(target)[_ATTRIBUTE] = stack.pop_all().close
    _forget_functions(target)


def _forget_functions(target: keras.layers.Layer) -> None:
    """Lets a model trace its step anew."""
    if isinstance(target, keras.Model) and target.compiled:
        target.train_function = None
