"""A throw-away forward pass that finds out what a model's step does."""

from collections.abc import Callable
from collections.abc import Iterator
import contextlib
import dataclasses
from typing import Any

import keras
import tensorflow as tf

from keras_tfopt import _compat
from keras_tfopt.accumulation.losses import replaced_activity_regularizer
from keras_tfopt.accumulation.losses import replaced_compile_loss
from keras_tfopt.accumulation.losses import split_loss
from keras_tfopt.accumulation.microstep import StepMode
from keras_tfopt.accumulation.scope import RecordingScope


@dataclasses.dataclass
class Discovery:
    """What the training step of a model does besides its arithmetic.

    Attributes:
        written: Keras variables that the forward pass, the loss and the
            metrics write, in or out of Keras' lists.
        loss_evaluations: How many losses are divided by a denominator.
        assumptions: What must be assumed to split a batch, one sentence each.
    """

    written: list[keras.Variable] = dataclasses.field(default_factory=list)
    loss_evaluations: int = 0
    assumptions: list[str] = dataclasses.field(default_factory=list)


def discover(
    model: keras.Model,
    run: Callable[[Callable[[Any], None]], None],
    mode: StepMode,
) -> Discovery:
    """Runs a model's forward pass for what it reveals, and builds the model.

    Nothing is written: the pass runs in a recording scope. Variables that the
    model, its loss and its metrics still have to create are created.

    Args:
        model: A compiled Keras model.
        run: Callable that takes a function of a batch and runs or traces it.
        mode: `StepMode`.

    Returns:
        `Discovery`.
    """
    observed: list[Discovery] = []

    def observe(data: Any) -> None:
        # TensorFlow traces twice where variables are created.
        observed.append(found := Discovery())
        step = _Step(model, mode, *keras.utils.unpack_x_y_sample_weight(data))
        scope = RecordingScope()
        with scope:
            loss = step.run_forward()
            early = list(scope.written)
            _compat.update_loss_tracker(model, loss, step.x)
            logs = step.run_metrics()
            found.written.extend(scope.written)
            _observe_logs(step, logs, scope, found)
            # Loss and metrics are built by now and can be looked at.
            _observe_losses(step, found)
            _observe_added_losses(step, found)
            _observe_metrics(step, early, found)

    run(observe)
    return observed[-1]


@dataclasses.dataclass
class _Step:
    """The parts of a training step, to be run again under observation."""

    model: keras.Model
    mode: StepMode
    x: Any
    y: Any
    sample_weight: Any
    y_pred: Any = None

    def run_forward(self) -> tf.Tensor:
        self.y_pred = _compat.forward(self.model, self.x, self.mode.training)
        return self.run_loss()

    def run_loss(self) -> tf.Tensor:
        return _compat.compute_loss(
            self.model,
            self.x,
            self.y,
            self.y_pred,
            self.sample_weight,
            self.mode.training,
        )

    def run_metrics(self) -> dict[str, Any]:
        return self.model.compute_metrics(
            self.x, self.y, self.y_pred, self.sample_weight
        )


def _observe_logs(
    step: _Step, logs: dict[str, Any], scope: RecordingScope, found: Discovery
) -> None:
    if type(step.model).compute_metrics is keras.Model.compute_metrics:
        return
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


def _observe_losses(step: _Step, found: Discovery) -> None:
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


def _observe_added_losses(step: _Step, found: Discovery) -> None:
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
            step.run_forward()
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


def _observe_metrics(
    step: _Step, early: list[keras.Variable], found: Discovery
) -> None:
    """Looks for metrics that are given a number, not a value per row.

    Args:
        step: The step.
        early: List of the variables that are written before the metrics'
            turn.
        found: What is found.
    """
    written = _ids(early)
    metrics = _metrics_of(step.model)
    names: list[str] = []
    with contextlib.ExitStack() as stack:
        for metric in metrics:
            stack.enter_context(_observed_metric(metric, names))
        if any(written & _ids(metric.variables) for metric in metrics):
            step.run_forward()
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
