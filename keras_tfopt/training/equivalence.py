"""Measuring on a user's own model whether splitting changes the gradient."""

import dataclasses
from typing import Any
import warnings

import keras
import numpy as np
import tensorflow as tf

from keras_tfopt import _compat
from keras_tfopt.accumulation import TRAINING
from keras_tfopt.accumulation import ExactnessWarning
from keras_tfopt.accumulation import StepMode
from keras_tfopt.accumulation import StepResult
from keras_tfopt.accumulation import build_split_step
from keras_tfopt.accumulation import build_whole_step
from keras_tfopt.accumulation.split import check_rows
from keras_tfopt.accumulation.split import count_rows
from keras_tfopt.training.batch import relax_rows
from keras_tfopt.training.batch import spec_of
from keras_tfopt.training.batch import to_tensors
from keras_tfopt.training.step_function import partition_function
from keras_tfopt.training.step_function import split_number

# Float32 sums of another order differ by about 1e-7 of the largest entry.
TOLERANCE = 1e-5

_INFERENCE = StepMode("inference", training=False, differentiates=True)


@dataclasses.dataclass(frozen=True)
class EquivalenceReport:
    """How much a split step differs from the step over the whole batch.

    Gradients are compared relative to their largest entry. The step is compared
    twice: as it is trained, and in inference mode, where dropout is off and
    BatchNormalization uses its moving statistics. What differs only in training
    comes from such layers; what differs in both comes from the losses.

    Attributes:
        errors: Dict of floats. Relative error of the gradient of each
            trainable variable, by path.
        inference_errors: The same with `training=False`.
        losses: Dict of `(whole, split)`. The loss, and that of each output.
        layers: List of strings. Layers that normalize or draw per micro-batch.
        assumptions: List of strings. What splitting assumes about the model.
    """

    errors: dict[str, float]
    inference_errors: dict[str, float]
    losses: dict[str, tuple[float, float]]
    layers: list[str]
    assumptions: list[str]

    @property
    def error(self) -> float:
        """Largest relative error of a gradient."""
        return max(self.errors.values(), default=0.0)

    @property
    def variable(self) -> str | None:
        """Path of the variable with the largest error."""
        return max(self.errors, key=self.errors.__getitem__, default=None)

    @property
    def output(self) -> str:
        """Name of the loss that differs most."""
        return max(self.losses, key=lambda name: _distance(*self.losses[name]))

    @property
    def is_equal(self) -> bool:
        """Whether the errors are those of float32 arithmetic."""
        return self.error <= TOLERANCE

    @property
    def cause(self) -> str:
        """One sentence on where the difference comes from."""
        if self.is_equal:
            return "Split and whole batch give the same gradient."
        if max(self.inference_errors.values(), default=0.0) <= TOLERANCE:
            return (
                "The losses split exactly; these layers see micro-batches "
                f"instead of the batch: {', '.join(self.layers)}."
            )
        return (
            f"The loss '{self.output}' or a layer before it couples the rows "
            "of a batch."
        )

    def __str__(self) -> str:
        """Returns the report as lines of text."""
        lines = [
            f"largest relative error {self.error:.2e} ({self.variable})",
            self.cause,
        ]
        for name, (whole, split) in self.losses.items():
            lines.append(f"loss '{name}': whole {whole:.7g}, split {split:.7g}")
        return "\n".join(lines + self.assumptions)


def check_equivalence(model: keras.Model, batch: Any) -> EquivalenceReport:
    """Compares the split with the whole step on one batch.

    Args:
        model: A compiled model with a `plan` that splits.
        batch: Nest `(x, y)` or `(x, y, sample_weight)`.

    Returns:
        `EquivalenceReport`.

    Raises:
        ValueError: If the plan does not split batches.
    """
    if not model.plan.is_split:
        raise ValueError(
            "There is nothing to compare where batches are not split. "
            f"Received: {model.plan}. Expected: a model with "
            "`accumulation_steps` or `microbatch_size`."
        )
    batch = to_tensors(batch)
    check_rows(batch)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ExactnessWarning)
        whole, split = _run(model, batch, TRAINING)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExactnessWarning)
        reference, inference = _run(model, batch, _INFERENCE)
    return EquivalenceReport(
        errors=_errors(model, whole, split),
        inference_errors=_errors(model, reference, inference),
        losses=_losses(model, whole, split),
        layers=_microbatch_layers(model),
        assumptions=[str(warning.message) for warning in caught],
    )


@dataclasses.dataclass(frozen=True)
class _Run:
    gradients: list
    state: dict[int, np.ndarray]


def _run(model: keras.Model, batch: Any, mode: StepMode) -> tuple[_Run, _Run]:
    eager = model.run_eagerly
    spec = batch if eager else spec_of(batch)
    whole, _ = build_whole_step(model, spec, eager, mode)
    split = build_split_step(
        model, batch if eager else relax_rows(spec), eager, 1.0, mode
    )
    number = split_number(model.plan)
    partition = partition_function(model.plan)(count_rows(batch), number)
    return _outcome(whole, whole(batch)), _outcome(
        split, split(batch, partition)
    )


def _outcome(step: Any, result: StepResult) -> _Run:
    state = zip(step.updated, result.updates, strict=True)
    return _Run(
        result.gradients,
        {id(variable): value.numpy() for variable, value in state},
    )


def _errors(model: keras.Model, whole: _Run, split: _Run) -> dict[str, float]:
    return {
        variable.path: _distance(_dense(first), _dense(second))
        for variable, first, second in zip(
            model.trainable_variables,
            whole.gradients,
            split.gradients,
            strict=True,
        )
        if first is not None
    }


def _dense(gradient: Any) -> np.ndarray:
    return tf.convert_to_tensor(gradient).numpy().astype("float64")


def _distance(whole: Any, split: Any) -> float:
    """Largest difference, relative to the largest entry of the first."""
    scale = float(np.max(np.abs(whole), initial=0.0))
    difference = float(np.max(np.abs(np.subtract(whole, split)), initial=0.0))
    return difference / scale if scale else difference


def _losses(
    model: keras.Model, whole: _Run, split: _Run
) -> dict[str, tuple[float, float]]:
    return {
        tracker.name: (_mean(tracker, whole), _mean(tracker, split))
        for tracker in _compat.loss_trackers(model)
    }


def _mean(tracker: keras.metrics.Metric, run: _Run) -> float:
    """What one step added to a loss tracker."""
    total, count = (
        run.state[id(variable)] - variable.numpy()
        for variable in tracker.variables
    )
    return float(total / count)


def _microbatch_layers(model: keras.Model) -> list[str]:
    return [
        f"{layer.name} ({type(layer).__name__})"
        for layer in _compat.layers_of(model)
        if isinstance(layer, keras.layers.BatchNormalization)
        or _compat.has_seed(layer)
    ]
