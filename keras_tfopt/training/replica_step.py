"""The pure step of each replica, in the parts between which replicas talk."""

from collections.abc import Callable
import dataclasses
from typing import Any

import keras
import tensorflow as tf

from keras_tfopt.accumulation import SplitStep
from keras_tfopt.accumulation import StepMode
from keras_tfopt.accumulation import StepResult
from keras_tfopt.accumulation import UnsplittableError
from keras_tfopt.accumulation import build_split_step
from keras_tfopt.accumulation import retrace
from keras_tfopt.accumulation.microstep import Share
from keras_tfopt.accumulation.pure_step import Accumulation
from keras_tfopt.accumulation.replication import unmergeable_state
from keras_tfopt.accumulation.split import Partition
from keras_tfopt.accumulation.split import count_rows
from keras_tfopt.distribution.replicas import Replicas
from keras_tfopt.plan import ExecutionPlan
from keras_tfopt.training.batch import relax_rows
from keras_tfopt.training.batch import static_rows
from keras_tfopt.training.step_function import as_compiled
from keras_tfopt.training.step_function import partition_function
from keras_tfopt.training.step_function import split_number


@dataclasses.dataclass(frozen=True)
class ReplicaStep:
    """The pure step of one replica.

    Attributes:
        step: `SplitStep`, whose trace reads the variables of the replica.
        measure: Callable `(part, value)` that returns rows and denominators of
            the replica's part of a batch as a `Share`.
        accumulate: Callable `(start, part, share, value)` that returns the
            `Accumulation` of its micro-batches.
        compiled: Function of a batch that XLA compiles as it does `accumulate`,
            to look at on the first replica, or `None`.
    """

    step: SplitStep
    measure: Callable[..., Share]
    accumulate: Callable[..., Accumulation]
    compiled: Any = None


def build_replica_steps(
    model: keras.Model,
    replicas: Replicas,
    spec: list,
    batch: list,
    plan: ExecutionPlan,
    mode: StepMode,
) -> list[ReplicaStep]:
    """Makes the pure step of each replica.

    Args:
        model: A compiled Keras model.
        replicas: `Replicas` of its strategy.
        spec: List of nests of the specs of the parts of a batch.
        batch: The first batch, as a list of its parts.
        plan: The `ExecutionPlan`.
        mode: `StepMode`.

    Returns:
        List of `ReplicaStep`.

    Raises:
        UnsplittableError: If the model does something in its forward pass that
            would not be the same in parts.
    """
    steps = _split_steps(model, replicas, spec, batch, plan, mode)
    unmergeable = unmergeable_state(model, steps[0].carried)
    if unmergeable:
        raise UnsplittableError(
            "Replicas cannot agree about the state of this model. Received: "
            f"{', '.join(unmergeable)}, declared with `register_row_state`. "
            "Expected: metrics, seeds and BatchNormalization only. Train "
            "without a distribution strategy."
        )
    if not plan.jit_compile:
        return [_plain(step, plan) for step in steps]
    return [
        _compiled(step, part, plan, replicas)
        for step, part in zip(steps, spec, strict=True)
    ]


def _split_steps(
    model: keras.Model,
    replicas: Replicas,
    spec: list,
    batch: list,
    plan: ExecutionPlan,
    mode: StepMode,
) -> list[SplitStep]:
    eager = model.run_eagerly
    example = batch[0] if eager else relax_rows(spec[0])
    made: list[SplitStep] = []
    result: list[SplitStep] = []

    def build() -> SplitStep:
        # The replicas are visited one after the other.
        if not made:
            made.append(
                build_split_step(model, example, eager, 1.0, mode, plan)
            )
        return made[0]

    def retrace_first() -> SplitStep:
        step = build()
        context = tf.distribute.get_replica_context()
        is_first = not tf.get_static_value(context.replica_id_in_sync_group)
        return step if eager or is_first else retrace(step, example)

    def build_all() -> None:
        made.clear()
        result[:] = replicas.run(retrace_first)

    # In a function, because TensorFlow warns of replicas outside of one.
    tf.function(build_all, autograph=False).get_concrete_function()
    return result


def _plain(step: SplitStep, plan: ExecutionPlan) -> ReplicaStep:
    partition = partition_function(plan)

    def measure(part: Any, value: tf.Tensor) -> Share:
        return _measure(step, part, partition(count_rows(part), value))

    def accumulate(
        start: Accumulation, part: Any, share: Share, value: tf.Tensor
    ) -> Accumulation:
        parts = partition(count_rows(part), value)
        return step.accumulate(start, part, share, parts)

    return ReplicaStep(step, measure, accumulate)


def _compiled(
    step: SplitStep, spec: Any, plan: ExecutionPlan, replicas: Replicas
) -> ReplicaStep:
    # XLA needs the sizes fixed.
    fixed = partition_function(plan)(static_rows(spec), split_number(plan))
    measure = as_compiled(lambda part: _measure(step, part, fixed), True)
    accumulate = as_compiled(
        lambda start, part, share: step.accumulate(start, part, share, fixed),
        True,
    )

    def run_first(batch: list) -> StepResult:
        with replicas.as_first():
            return step(batch[0], fixed)

    return ReplicaStep(
        step,
        lambda part, value: measure(part),
        lambda start, part, share, value: accumulate(start, part, share),
        as_compiled(run_first, True),
    )


def _measure(step: SplitStep, part: Any, partition: Partition) -> Share:
    denominators = step.count_denominators(part, partition)
    return Share(count_rows(part), denominators, tf.constant(0))
