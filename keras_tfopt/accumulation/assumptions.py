"""What must be assumed about a model to split its batches."""

from collections.abc import Callable
from collections.abc import Iterator
import contextlib
from typing import Any

import keras
import tensorflow as tf

from keras_tfopt import _compat
from keras_tfopt.accumulation.discovery import Discovery
from keras_tfopt.accumulation.forward_pass import ForwardPass
from keras_tfopt.accumulation.losses import replaced_activity_regularizer
from keras_tfopt.accumulation.losses import replaced_compile_loss
from keras_tfopt.accumulation.losses import split_loss


def look_for_assumptions(step: ForwardPass, found: Discovery) -> None:
    """Notes what must be assumed to split the batch of a forward pass.

    Args:
        step: `ForwardPass` that has run; loss and metrics are built by now and
            can be looked at.
        found: `Discovery` that takes the notes.
    """
    _observe_logs(step, found)
    _observe_losses(step, found)
    _observe_added_losses(step, found)
    _observe_metrics(step, found)


def _observe_logs(step: ForwardPass, found: Discovery) -> None:
    if type(step.model).compute_metrics is keras.Model.compute_metrics:
        return
    logs, scope = step.logs, step.scope
    state = [scope.get_current_value(variable) for variable in scope.written]
    data = (step.x, step.y, step.sample_weight, step.y_pred)
    names = [key for key, value in logs.items() if _depends(value, data, state)]
    if names:
        found.assumptions.append(
            f"`{type(step.model).__name__}.compute_metrics` computes {names} "
            "from the batch; those of the last micro-batch are reported. A "
            "metric that it updates and whose result it returns is exact."
        )


def _depends(value: Any, data: Any, state: list[tf.Tensor]) -> bool:
    """Whether a value depends on data past the state; only in a graph."""
    sources, ends = _names(data), _names(state)
    waiting = _symbolic(value)
    seen: set[str] = set()
    while waiting:
        tensor = waiting.pop()
        if tensor.name in seen or tensor.name in ends:
            continue
        if tensor.name in sources:
            return True
        seen.add(tensor.name)
        waiting.extend(tensor.op.inputs)
    return False


def _names(nest: Any) -> set[str]:
    return {tensor.name for tensor in _symbolic(nest)}


def _symbolic(nest: Any) -> list[tf.Tensor]:
    leaves = tf.nest.flatten(nest, expand_composites=True)
    return [leaf for leaf in leaves if tf.is_symbolic_tensor(leaf)]


def _observe_losses(step: ForwardPass, found: Discovery) -> None:
    model = step.model
    compiled = _compat.compile_loss(model)
    # An overridden `compute_loss` may never build it.
    if compiled is not None and compiled.built:
        spy = _compat.clone_loss(compiled)
        entries = _compat.flat_losses(compiled)
        terms = [_spy(entry.loss, entry.name, found) for entry in entries]
        _compat.replace_flat_losses(spy, terms, [None] * len(entries))
        with replaced_compile_loss(model, spy):
            step.run_loss()
    if type(model).compute_loss is not keras.Model.compute_loss:
        found.assumptions.append(
            f"`{type(model).__name__}.compute_loss` is overridden; what it "
            "adds to the compiled loss is taken for a mean over the rows."
        )


def _spy(loss: Any, name: str, found: Discovery) -> Callable:
    def evaluate(y_true: Any, y_pred: Any, sample_weight: Any) -> tf.Tensor:
        if split_loss(loss, y_true, y_pred, sample_weight, 1) is None:
            assumption = (
                f"Loss '{name}' returns one number for a whole batch; it is "
                "taken for a mean over the rows."
            )
            if assumption not in found.assumptions:
                found.assumptions.append(assumption)
        else:
            found.loss_evaluations += 1
        return loss(y_true, y_pred, sample_weight)

    return evaluate


def _observe_added_losses(step: ForwardPass, found: Discovery) -> None:
    layers = [
        layer
        for layer in _compat.layers_of(step.model)
        if _compat.count_added_losses(layer)
    ]
    regularized = [
        layer for layer in layers if layer.activity_regularizer is not None
    ]
    calls = {id(layer): 0 for layer in layers}
    if regularized:
        with contextlib.ExitStack() as stack:
            for layer in regularized:
                counting = _counting(layer, calls)
                stack.enter_context(
                    replaced_activity_regularizer(layer, counting)
                )
            step.run_model()
    for layer in layers:
        if _compat.count_added_losses(layer) > calls[id(layer)]:
            found.assumptions.append(
                f"Layer '{layer.name}' ({type(layer).__name__}) calls "
                "`add_loss`; its value is taken for a mean over the rows."
            )


def _counting(layer: keras.layers.Layer, calls: dict[int, int]) -> Callable:
    regularizer = layer.activity_regularizer

    def regularize(output: tf.Tensor) -> tf.Tensor:
        calls[id(layer)] += 1
        return regularizer(output)

    return regularize


def _observe_metrics(step: ForwardPass, found: Discovery) -> None:
    """Looks for metrics that are given a number, not a value per row."""
    written = _ids(step.early)
    metrics = _metrics_of(step.model)
    names: list[str] = []
    with contextlib.ExitStack() as stack:
        for metric in metrics:
            stack.enter_context(_observed_metric(metric, names))
        if any(written & _ids(metric.variables) for metric in metrics):
            step.run_model()
        step.run_metrics()
    found.assumptions.extend(
        f"Metric '{name}' is given one number for a whole batch; it is given "
        "one for each micro-batch instead, all of the same weight."
        for name in dict.fromkeys(names)
    )


def _metrics_of(model: keras.Model) -> list[keras.metrics.Metric]:
    compiled = _compat.compile_loss(model)
    trackers = [] if compiled is None else compiled.metrics
    known = _ids(trackers)
    metrics = [*_compat.flat_metrics(model), *model.metrics]
    unique = {id(metric): metric for metric in metrics}
    return [metric for key, metric in unique.items() if key not in known]


def _ids(objects: list) -> set[int]:
    return {id(one) for one in objects}


@contextlib.contextmanager
def _observed_metric(
    metric: keras.metrics.Metric, names: list[str]
) -> Iterator[None]:
    """Notes the name of a metric when it is given a bare number."""
    function = _compat.metric_function(metric)

    def observe(value: Any) -> None:
        if len(getattr(value, "shape", ())) == 0:
            names.append(metric.name)

    def observed_update(values: Any, sample_weight: Any = None) -> Any:
        if sample_weight is None:
            observe(values)
        return type(metric).update_state(metric, values, sample_weight)

    if function is not None:
        _compat.set_metric_function(metric, _observed(function, observe))
    elif type(metric) in (keras.metrics.Mean, keras.metrics.Sum):
        # Past `__setattr__`, which would start to track it.
        vars(metric)["update_state"] = observed_update
    try:
        yield
    finally:
        if function is not None:
            _compat.set_metric_function(metric, function)
        vars(metric).pop("update_state", None)


def _observed(function: Callable, observe: Callable) -> Callable:
    def observed(*args: Any, **kwargs: Any) -> Any:
        values = function(*args, **kwargs)
        observe(values)
        return values

    return observed
