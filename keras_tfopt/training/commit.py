"""The commit: all writes of a step, behind everything that can fail."""

from collections.abc import Callable
import contextlib
from typing import Any
import warnings

import keras
import tensorflow as tf

from keras_tfopt import _compat
from keras_tfopt.accumulation import SplitStep
from keras_tfopt.accumulation import StepResult
from keras_tfopt.accumulation import WholeStep
from keras_tfopt.accumulation.host_memory import HOST
from keras_tfopt.devices import at
from keras_tfopt.devices import placements
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
    # Without the barrier a write may run ahead of a gradient that fails.
    result, outputs = awaited(result, _devices_of(step, result))
    checks = run_check(step, result, outputs)

    def write_behind(begin: list[tf.Operation]) -> None:
        with tf.control_dependencies(begin), chained(model, step):
            write(model, step, result)

    write_marked(log, [*outputs, *checks], write_behind, step)


def run_check(
    step: WholeStep | SplitStep, result: StepResult, outputs: list[tf.Tensor]
) -> list[tf.Operation]:
    """Runs the check of a step's mode and returns what fails if it does.

    Args:
        step: The pure step.
        result: What is going to be written.
        outputs: Tensors to wait for.
    """
    if step.mode.check is None:
        return []
    with tf.control_dependencies(outputs):
        return step.mode.check(step, result)


def write_marked(
    log: CommitLog,
    outputs: list[Any],
    write: Callable[[list[tf.Operation]], None],
    step: WholeStep | SplitStep,
) -> None:
    """Writes between two marks, behind all outputs, and lets checks look back.

    Args:
        log: `CommitLog`.
        outputs: Tensors and operations to wait for.
        write: Callable that writes behind the operations that it is given.
        step: The pure step, whose mode has the check.
    """
    if tf.executing_eagerly():
        log.mark()
        write([])
        log.mark()
        _look_back(step)
        return
    with tf.control_dependencies(outputs):
        begin = log.mark()
    known = len(tf.compat.v1.get_default_graph().get_operations())
    write([begin])
    with tf.control_dependencies(writing_operations(known)):
        log.mark()
        _look_back(step)


def _look_back(step: WholeStep | SplitStep) -> None:
    check: Any = step.mode.check
    if hasattr(check, "look_back"):
        check.look_back(step)


def _devices_of(
    step: WholeStep | SplitStep, result: StepResult
) -> dict[int, str | None]:
    """Returns where what is written belongs, by the identity of tensors."""
    devices: dict[int, str | None] = {}
    for values, variables in (
        (result.gradients, step.trainable if result.gradients else []),
        (result.updates, step.updated),
    ):
        for value, device in zip(values, placements(variables), strict=True):
            for leaf in tf.nest.flatten(value, expand_composites=True):
                devices[id(leaf)] = device
    return devices


def awaited(
    result: Any, devices: dict[int, str | None] | None = None
) -> tuple[Any, list[tf.Tensor]]:
    """Returns a nest and its tensors, each of which can be waited for.

    A control dependency on the output of a function call waits for the side
    effects of the call only, once TensorFlow inlines it. One on an identity
    waits for the value.

    Args:
        result: The nest.
        devices: Dict of the devices of tensors, by their identities. Defaults
            to `None`, which leaves the choice to TensorFlow.
    """
    if tf.executing_eagerly():
        return result, []
    flat = []
    for leaf in tf.nest.flatten(result, expand_composites=True):
        with at((devices or {}).get(id(leaf))):
            is_tensor = isinstance(leaf, tf.Tensor)
            flat.append(tf.identity(leaf) if is_tensor else leaf)
    tensors = [leaf for leaf in flat if isinstance(leaf, tf.Tensor)]
    packed = tf.nest.pack_sequence_as(result, flat, expand_composites=True)
    return packed, tensors


def chained(
    model: keras.Model, step: WholeStep | SplitStep
) -> contextlib.AbstractContextManager:
    """Returns what chains the optimizer's updates where there are any."""
    if step.mode.differentiates and step.trainable:
        return chained_updates(model.optimizer, _update_place(step))
    return contextlib.nullcontext()


def _update_place(
    step: SplitStep | WholeStep,
) -> Callable[[Any], str] | None:
    """Returns what tells where to update a variable, if TensorFlow must not."""
    if step.plan.offloads("slots"):
        return lambda variable: HOST
    if any(placements(step.trainable)):
        return lambda variable: variable.device
    return None


def write(
    model: keras.Model,
    step: WholeStep | SplitStep,
    result: StepResult,
) -> None:
    """Assigns new state and applies the optimizer.

    Args:
        model: The compiled Keras model.
        step: The pure step.
        result: What it returned.
    """
    for variable, value in zip(step.updated, result.updates, strict=True):
        variable.assign(value)
    if not step.mode.differentiates:
        return
    if not step.trainable:
        warnings.warn(
            "The model does not have any trainable weights.", stacklevel=2
        )
        return
    with _in_place(model, step):
        model.optimizer.apply_gradients(
            zip(result.gradients, step.trainable, strict=True)
        )


def _in_place(
    model: keras.Model, step: WholeStep | SplitStep
) -> contextlib.AbstractContextManager:
    """Returns what leaves gradients on several devices where they are."""
    if not any(placements(step.trainable)):
        return contextlib.nullcontext()
    # Even without replicas, their sum passes through the default device.
    return _compat.without_reduction(model.optimizer)
