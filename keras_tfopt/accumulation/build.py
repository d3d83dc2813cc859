"""Making the pure step of a model, or refusing with the reason."""

from collections.abc import Callable
import dataclasses
import functools
from typing import Any
import warnings

import keras
import tensorflow as tf

from keras_tfopt.accumulation.assumptions import look_for_assumptions
from keras_tfopt.accumulation.discovery import Discovery
from keras_tfopt.accumulation.discovery import discover
from keras_tfopt.accumulation.host_memory import HOST
from keras_tfopt.accumulation.microstep import TRAINING
from keras_tfopt.accumulation.microstep import Microstep
from keras_tfopt.accumulation.microstep import MicrostepResult
from keras_tfopt.accumulation.microstep import Share
from keras_tfopt.accumulation.microstep import StepMode
from keras_tfopt.accumulation.microstep import read_values
from keras_tfopt.accumulation.optimizer_build import build_optimizer
from keras_tfopt.accumulation.padded_step import PaddedMicrostep
from keras_tfopt.accumulation.padded_step import PaddedStep
from keras_tfopt.accumulation.padded_step import run_padded
from keras_tfopt.accumulation.padding import PaddingError
from keras_tfopt.accumulation.pure_step import SplitStep
from keras_tfopt.accumulation.pure_step import WholeStep
from keras_tfopt.accumulation.purity import Effects
from keras_tfopt.accumulation.purity import find_effects
from keras_tfopt.accumulation.scope import BranchWriteError
from keras_tfopt.accumulation.split import take_rows
from keras_tfopt.accumulation.state import StateRules
from keras_tfopt.accumulation.state import layer_state
from keras_tfopt.plan import ExecutionPlan

_PLAIN = ExecutionPlan()


class UnsplittableError(ValueError):
    """A model does something that would not be the same in parts."""


class ExactnessWarning(UserWarning):
    """Says what is assumed where splitting cannot be proven exact."""


def build_whole_step(
    model: keras.Model,
    example: Any,
    run_eagerly: bool,
    mode: StepMode = TRAINING,
    plan: ExecutionPlan = _PLAIN,
) -> tuple[WholeStep, Effects]:
    """Makes the pure step for batches that are not split.

    Args:
        model: A compiled Keras model; it is built here where it is not.
        example: Nest of tensor specs of a batch; a batch when `run_eagerly`.
        run_eagerly: Boolean. Whether the step runs without a graph.
        mode: `StepMode`. Defaults to `TRAINING`.
        plan: `ExecutionPlan`. Defaults to one that recomputes nothing.

    Returns:
        The step, and the effects that it has past Keras.
    """
    found = discover(model, _runner(example, run_eagerly), mode)
    trainable = _build_optimizer(model, plan) if mode.differentiates else []
    definition = Microstep(
        model, trainable, found.written, [], mode=mode, plan=plan
    )
    if run_eagerly:
        # Only graphs have a use for the structure of the logs.
        return WholeStep(definition, (), definition), Effects()
    function = _trace(definition, example, [], None)
    logs = MicrostepResult(*function.structured_outputs).logs
    return WholeStep(function, logs, definition), find_effects(function)


def build_split_step(
    model: keras.Model,
    example: Any,
    run_eagerly: bool,
    tracker_weight: float,
    mode: StepMode = TRAINING,
    plan: ExecutionPlan = _PLAIN,
) -> SplitStep:
    """Makes the pure step for batches that are split.

    Args:
        model: A compiled Keras model; it is built here where it is not.
        example: Nest of tensor specs of a micro-batch; a batch when
            `run_eagerly`.
        run_eagerly: Boolean. Whether the step runs without a graph.
        tracker_weight: Float. Weight of a batch in the per-output trackers.
        mode: `StepMode`. Defaults to `TRAINING`.
        plan: `ExecutionPlan`. Defaults to one that recomputes nothing.

    Returns:
        `SplitStep`.

    Raises:
        UnsplittableError: If the model does something in its forward pass that
            would not be the same in parts.
    """
    run = _runner(example, run_eagerly)
    found = discover(model, run, mode, look_for_assumptions)
    trainable = _build_optimizer(model, plan) if mode.differentiates else []
    rules = StateRules(model, found.written)
    _refuse(_scaled_parameters(trainable) + rules.refused)
    definition = Microstep(
        model,
        trainable,
        rules.carried,
        rules.normalizers,
        tracker_weight,
        mode,
        plan,
    )
    share = _share_spec(found.loss_evaluations)
    try:
        function = _trace(definition, example, rules.carried, share)
    except Exception:
        if not run_eagerly:
            raise
        # Not every eager model can be traced; then nothing can be looked at.
        like = _trial(definition, example, share)
    else:
        like = MicrostepResult(*function.structured_outputs)
        _refuse_effects(find_effects(function), found)
    if run_eagerly:
        function = definition
    for assumption in found.assumptions:
        warnings.warn(
            f"Splitting batches may not be exact. {assumption} A model "
            "without `accumulation_steps`, `microbatch_size` and "
            "`gather_steps` needs no assumption.",
            ExactnessWarning,
            stacklevel=2,
        )
    return SplitStep(function, like, definition)


def build_padded_step(
    model: keras.Model,
    example: Any,
    padded: Any,
    size: int,
    tracker_weight: float,
    mode: StepMode = TRAINING,
    plan: ExecutionPlan = _PLAIN,
) -> PaddedStep:
    """Makes the pure step for batches whose rows are padded for XLA.

    Args:
        model: A compiled Keras model; it is built here where it is not.
        example: Nest of tensor specs of a micro-batch of any rows.
        padded: The same of one with padding.
        size: Integer. Its rows.
        tracker_weight: Float. Weight of a batch in the per-output trackers.
        mode: `StepMode`. Defaults to `TRAINING`.
        plan: `ExecutionPlan`. Defaults to one that recomputes nothing.

    Returns:
        `PaddedStep`. Whether rows influence each other, only running it tells.

    Raises:
        PaddingError: If the forward pass changes state that would be changed
            for rows of padding too, or draws numbers for them.
    """
    try:
        found = discover(
            model, _runner(example, False), mode, look_for_assumptions
        )
    except BranchWriteError as error:
        raise PaddingError(str(error)) from error
    state = layer_state(model, found.written)
    if state:
        raise PaddingError(f"the forward pass changes {', '.join(state)}")
    trainable = _build_optimizer(model, plan) if mode.differentiates else []
    definition = Microstep(
        model, trainable, found.written, [], tracker_weight, mode, plan
    )
    share = _share_spec(found.loss_evaluations)
    uncompiled = dataclasses.replace(
        definition, plan=dataclasses.replace(plan, jit_compile=False)
    )
    function = _trace(uncompiled, example, found.written, share)
    _refuse_padding(find_effects(function))
    like = MicrostepResult(*function.structured_outputs)
    compiled = tf.function(
        functools.partial(run_padded, definition, size),
        jit_compile=True,
        autograph=False,
    ).get_concrete_function(
        padded,
        tf.TensorSpec((), tf.int32),
        _specs(trainable),
        _specs(found.written),
        share,
    )
    return PaddedStep(
        PaddedMicrostep(definition, compiled, size),
        SplitStep(function, like, uncompiled),
        plan.is_split,
    )


def retrace(step: SplitStep, example: Any) -> SplitStep:
    """Returns the same step, traced anew.

    A trace holds on to the variables of the replica that it was made on.

    Args:
        step: `SplitStep` that does not run eagerly.
        example: Nest of tensor specs of a micro-batch.
    """
    share = _share_spec(step.like.denominators.shape[0])
    function = _trace(step.definition, example, step.carried, share)
    return SplitStep(function, step.like, step.definition)


def _share_spec(loss_evaluations: int) -> Share:
    return Share(
        tf.TensorSpec((), tf.int32),
        tf.TensorSpec((loss_evaluations,), tf.float32),
        tf.TensorSpec((), tf.int32),
    )


def _runner(example: Any, run_eagerly: bool) -> Callable:
    def run(observe: Callable) -> None:
        trace = tf.function(observe, autograph=False).get_concrete_function
        try:
            # A trace runs nothing that could have an effect.
            trace(example)
        except Exception:
            if not run_eagerly:
                raise
            observe(example)

    return run


def _build_optimizer(
    model: keras.Model, plan: ExecutionPlan
) -> list[keras.Variable]:
    trainable = list(model.trainable_variables)
    if model.optimizer is not None:
        device = HOST if plan.offloads("slots") else None
        build_optimizer(model.optimizer, trainable, device)
    return trainable


def _trace(
    definition: Microstep,
    example: Any,
    state: list[keras.Variable],
    share: Share | None,
) -> tf.types.experimental.ConcreteFunction:
    return tf.function(
        definition.__call__, autograph=False
    ).get_concrete_function(
        example, _specs(definition.trainable), _specs(state), share
    )


def _trial(definition: Microstep, batch: Any, share: Share) -> MicrostepResult:
    """Runs one row, for the structure of what a micro-step returns."""
    return definition(
        take_rows(batch, 0, 1),
        read_values(definition.trainable),
        read_values(definition.updated),
        Share(
            tf.constant(1), tf.ones(share.denominators.shape), tf.constant(0)
        ),
    )


def _specs(variables: list[keras.Variable]) -> list[tf.TensorSpec]:
    return [tf.TensorSpec(v.shape, v.dtype) for v in variables]


def _scaled_parameters(trainable: list[keras.Variable]) -> list[str]:
    return [
        f"variable '{variable.path}', which the optimizer overwrites with its "
        "gradient"
        for variable in trainable
        if getattr(variable, "overwrite_with_gradient", False)
    ]


def _refuse_padding(effects: Effects) -> None:
    reasons = [f"writes '{name}' past Keras" for name in effects.writes]
    reasons += [f"calls Python function '{n}'" for n in effects.python_ops]
    reasons += [f"draws numbers by {name}" for name in effects.random_ops]
    if reasons:
        raise PaddingError(f"the forward pass {', '.join(reasons)}")


def _refuse_effects(effects: Effects, found: Discovery) -> None:
    if effects.random_ops:
        found.assumptions.append(
            f"{', '.join(effects.random_ops)} draws from TensorFlow's hidden "
            "generator, whose numbers cannot be repeated; `keras.random` with "
            "a `SeedGenerator` can."
        )
    _refuse(
        [
            f"tf.Variable '{name}', written past Keras by '{writer}'"
            for name, writer in zip(
                effects.writes, effects.writers, strict=True
            )
        ]
        + [
            f"Python function '{name}', which may have effects; "
            "`tf.numpy_function(..., stateful=False)` declares that it has none"
            for name in effects.python_ops
        ]
    )


def _refuse(reasons: list[str]) -> None:
    if reasons:
        raise UnsplittableError(
            "Batches of this model cannot be split exactly. Its forward pass "
            "changes state that would be changed once per micro-batch instead "
            f"of once per batch. Received: {'; '.join(reasons)}. Expected: no "
            "such state. Train without `accumulation_steps`, "
            "`microbatch_size` and `gather_steps`, or declare a layer whose "
            "state only sums over rows with `register_row_state`."
        )
