"""The function that runs steps on padded batches, once that is proven exact."""

from typing import Any

import keras
import tensorflow as tf

from keras_tfopt.accumulation import PaddedStep
from keras_tfopt.accumulation import PaddingError
from keras_tfopt.accumulation import StepMode
from keras_tfopt.accumulation import StepResult
from keras_tfopt.accumulation import build_padded_step
from keras_tfopt.accumulation.split import check_rows
from keras_tfopt.plan import ExecutionPlan
from keras_tfopt.training.batch import fix_rows
from keras_tfopt.training.batch import relax_rows
from keras_tfopt.training.batch import static_rows
from keras_tfopt.training.padding_proof import PaddingProof
from keras_tfopt.training.step_function import StepFunction
from keras_tfopt.training.step_function import as_compiled


def padded_step_function(
    model: keras.Model,
    spec: Any,
    batch: Any,
    plan: ExecutionPlan,
    mode: StepMode,
    capacity: int,
) -> StepFunction:
    """Makes the function for micro-batches of a padded size.

    Args:
        model: A compiled Keras model that does not run eagerly.
        spec: Nest of the specs of a batch.
        batch: The first batch.
        plan: The `ExecutionPlan`, with `padded_rows`.
        mode: `StepMode`.
        capacity: Integer. Largest number of steps in a call.

    Returns:
        `StepFunction`. A call raises `PaddingError` where padding turns out to
        change something.

    Raises:
        PaddingError: If the model is known not to allow for padding.
    """
    check_rows(batch)
    example = relax_rows(spec)
    size = plan.padded_rows or 1
    _check_dense(example)
    step = build_padded_step(
        model,
        example,
        fix_rows(example, size),
        size,
        float(static_rows(spec) or 1),
        mode,
        plan,
    )
    return StepFunction(
        model,
        step,
        lambda batch, value: _run(step, batch),
        spec,
        capacity,
        PaddingProof(model, step, example),
        compiled=as_compiled(step.look, True),
    )


def _run(step: PaddedStep, batch: Any) -> StepResult:
    return step(batch, step.partition(batch))


def _check_dense(spec: Any) -> None:
    for leaf in tf.nest.flatten(spec):
        if leaf is None:
            continue
        if not isinstance(leaf, tf.TensorSpec) or leaf.shape.rank is None:
            raise PaddingError(
                f"rows of {leaf} cannot be padded, only those of dense tensors "
                "of a known rank"
            )
