"""The commit: all writes of a step, behind everything that can fail."""

from typing import Any
import warnings

import keras
import tensorflow as tf

from keras_tfopt.accumulation import SplitStep
from keras_tfopt.accumulation import StepResult
from keras_tfopt.accumulation import WholeStep
from keras_tfopt.errors import InterruptedCommitError
from keras_tfopt.training.chained_updates import chained_updates
from keras_tfopt.training.chained_updates import writing_operations


class CommitLog:
    """Counts the commits of a function, also when one is interrupted.

    A counter on the device is raised before the first and after the last write
    of each commit, so that it is odd where a commit was interrupted.
    """

    def __init__(self) -> None:
        with tf.init_scope(), tf.device("CPU:0"):
            self._marks = tf.Variable(0, dtype=tf.int64, trainable=False)
        self._expected = 0

    def mark(self) -> tf.Operation:
        """Raises the counter."""
        return self._marks.assign_add(1, read_value=False)

    def expect(self, steps: int) -> None:
        """Notes that steps succeeded, without asking the device."""
        self._expected += 2 * steps

    def settle(self, error: BaseException) -> int:
        """Asks the device how many steps were committed before an error.

        Args:
            error: What the function raised.

        Returns:
            Integer. Complete commits since the last note.

        Raises:
            InterruptedCommitError: If a commit was cut in two.
        """
        marks = int(self._marks)
        done, interrupted = divmod(marks - self._expected, 2)
        self._expected = marks + interrupted
        if not interrupted:
            return done
        self._marks.assign_add(1)
        raise InterruptedCommitError(
            "A step failed while it wrote its results; some of its writes are "
            f"made. Received: {type(error).__name__}: {error}. Expected: room "
            "for the optimizer's temporaries. Restore weights and optimizer "
            "from a backup before you train on."
        ) from error


def commit(
    model: keras.Model,
    step: WholeStep | SplitStep,
    result: StepResult,
    log: CommitLog,
) -> None:
    """Writes a step's result: state, weights, slots and metrics, once each.

    Args:
        model: The compiled Keras model.
        step: The pure step.
        result: What it returned.
        log: `CommitLog` that notes beginning and end.
    """
    check = step.mode.check or _no_check
    if tf.executing_eagerly():
        check(step, result)
        log.mark()
        _write(model, step, result)
        log.mark()
        _look_back(check, step)
        return
    # Without the barrier a write may run ahead of a gradient that fails.
    result, outputs = awaited(result)
    with tf.control_dependencies(outputs):
        checks = check(step, result)
    with tf.control_dependencies([*outputs, *checks]):
        begin = log.mark()
    with tf.control_dependencies([begin]):
        known = len(tf.compat.v1.get_default_graph().get_operations())
        _write(model, step, result)
        writes = writing_operations(known)
    with tf.control_dependencies(writes):
        log.mark()
        _look_back(check, step)


def _look_back(check: Any, step: WholeStep | SplitStep) -> None:
    if hasattr(check, "look_back"):
        check.look_back(step)


def _no_check(step: Any, result: StepResult) -> list[tf.Operation]:
    return []


def awaited(result: StepResult) -> tuple[StepResult, list[tf.Tensor]]:
    """Returns a result and its tensors, each of which can be waited for.

    A control dependency on the output of a function call waits for the side
    effects of the call only, once TensorFlow inlines it. One on an identity
    waits for the value.
    """
    flat = [
        tf.identity(leaf) if isinstance(leaf, tf.Tensor) else leaf
        for leaf in tf.nest.flatten(result, expand_composites=True)
    ]
    tensors = [leaf for leaf in flat if isinstance(leaf, tf.Tensor)]
    packed = tf.nest.pack_sequence_as(result, flat, expand_composites=True)
    return packed, tensors


def _write(
    model: keras.Model,
    step: WholeStep | SplitStep,
    result: StepResult,
) -> None:
    for variable, value in zip(step.updated, result.updates, strict=True):
        variable.assign(value)
    if not step.mode.differentiates:
        return
    if not step.trainable:
        warnings.warn(
            "The model does not have any trainable weights.", stacklevel=2
        )
        return
    with chained_updates(model.optimizer):
        model.optimizer.apply_gradients(
            zip(result.gradients, step.trainable, strict=True)
        )
