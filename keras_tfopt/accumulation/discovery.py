"""A throw-away forward pass that finds out what a model's step does."""

from collections.abc import Callable
from collections.abc import Iterator
import contextlib
import dataclasses
from typing import Any

import keras
import tensorflow as tf

from keras_tfopt import _compat
from keras_tfopt.accumulation.losses import replaced_compile_loss
from keras_tfopt.accumulation.losses import split_loss
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
    model: keras.Model, run: Callable[[Callable[[Any], None]], None]
) -> Discovery:
    """Runs a model's forward pass for what it reveals, and builds the model.

    Nothing is written: the pass runs in a recording scope. Variables that the
    model, its loss and its metrics still have to create are created.

    Args:
        model: A compiled Keras model.
        run: Callable that takes a function of a batch and runs or traces it.

    Returns:
        `Discovery`.
    """
    observed: list[Discovery] = []

    def observe(data: Any) -> None:
        # TensorFlow traces twice where variables are created.
        observed.append(found := Discovery())
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        batch = (x, y, sample_weight)
        scope = RecordingScope()
        with scope:
            y_pred = _compat.forward(model, x)
            loss = _compat.compute_loss(model, x, y, y_pred, sample_weight)
            _observe_state(model, scope, found)
            _compat.update_loss_tracker(model, loss, x)
            model.compute_metrics(x, y, y_pred, sample_weight)
            found.written.extend(scope.written)
            # Loss and metrics are built by now and can be looked at.
            _observe_losses(model, batch, y_pred, found)
            _observe_metrics(model, batch, y_pred, found)

    run(observe)
    return observed[-1]


def _observe_state(
    model: keras.Model, scope: RecordingScope, found: Discovery
) -> None:
    compiled = _compat.compile_loss(model)
    trackers = [] if compiled is None else compiled.variables
    known = {id(variable) for variable in trackers}
    metrics = {id(variable) for variable in model.metrics_variables} - known
    names = [v.path for v in scope.written if id(v) in metrics]
    if names:
        found.assumptions.append(
            f"The metric variables {names} are updated in `call` or in "
            "`compute_loss`, once per micro-batch and not weighted by rows."
        )


def _observe_losses(
    model: keras.Model, batch: tuple, y_pred: Any, found: Discovery
) -> None:
    x, y, sample_weight = batch
    compiled = _compat.compile_loss(model)
    if compiled is not None:
        spy = _compat.clone_loss(compiled)
        entries = _compat.flat_losses(compiled)
        terms = [_spy(entry.loss, entry.name, found) for entry in entries]
        _compat.replace_flat_losses(spy, terms, [None] * len(entries))
        with replaced_compile_loss(model, spy):
            _compat.compute_loss(model, x, y, y_pred, sample_weight)
    if type(model).compute_loss is not keras.Model.compute_loss:
        found.assumptions.append(
            f"`{type(model).__name__}.compute_loss` is overridden; what it "
            "adds to the compiled loss is taken for a mean over the rows."
        )
    for layer in _compat.layers_of(model):
        is_regularizer = layer.activity_regularizer is not None
        if _compat.has_added_loss(layer) and not is_regularizer:
            found.assumptions.append(
                f"Layer '{layer.name}' ({type(layer).__name__}) calls "
                "`add_loss`; its value is taken for a mean over the rows."
            )


def _spy(loss: Any, name: str, found: Discovery) -> Callable:
    def evaluate(y_true: Any, y_pred: Any, sample_weight: Any) -> tf.Tensor:
        if split_loss(loss, y_true, y_pred, sample_weight) is None:
            found.assumptions.append(
                f"Loss '{name}' returns one number for a whole batch; it is "
                "taken for a mean over the rows."
            )
        else:
            found.loss_evaluations += 1
        return loss(y_true, y_pred, sample_weight)

    return evaluate


def _observe_metrics(
    model: keras.Model, batch: tuple, y_pred: Any, found: Discovery
) -> None:
    x, y, sample_weight = batch
    scalars: list[str] = []
    with contextlib.ExitStack() as stack:
        for metric in _compat.flat_metrics(model):
            if _compat.metric_function(metric) is not None:
                stack.enter_context(_observed_function(metric, scalars))
        model.compute_metrics(x, y, y_pred, sample_weight)
    found.assumptions.extend(
        f"Metric '{name}' returns one number for a whole batch; the numbers of "
        "the micro-batches are averaged."
        for name in dict.fromkeys(scalars)
    )


@contextlib.contextmanager
def _observed_function(
    metric: keras.metrics.Metric, scalars: list[str]
) -> Iterator[None]:
    function = _compat.metric_function(metric)

    def observed(*args: Any, **kwargs: Any) -> tf.Tensor:
        values = function(*args, **kwargs)
        if len(values.shape) == 0:
            scalars.append(metric.name)
        return values

    _compat.set_metric_function(metric, observed)
    try:
        yield
    finally:
        _compat.set_metric_function(metric, function)
