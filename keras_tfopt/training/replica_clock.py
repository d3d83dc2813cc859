"""How long replicas compute and how long they add up, inside of the step."""

import dataclasses
from typing import Any

import numpy as np
import tensorflow as tf

from keras_tfopt.accumulation import StepMode
from keras_tfopt.accumulation import StepResult

# Entries of the sums before those of the replicas.
_HEAD = 5


@dataclasses.dataclass(frozen=True)
class ReplicaTimes:
    """Moments of a step, in seconds of the clock of the host.

    Attributes:
        begun: Float64 scalar. When the step began.
        started: List with one for each replica: when it knew the rows of all.
        computed: List. When each had its gradients.
        reduced: List. When each had the sum of all gradients.
        reduced_bytes: Float64 scalar. Gradients that a replica gave.
    """

    begun: tf.Tensor
    started: list[tf.Tensor]
    computed: list[tf.Tensor]
    reduced: list[tf.Tensor]
    reduced_bytes: tf.Tensor


class ReplicaClock:
    """Adds up the times of the replicas, step by step.

    It stands among the checks of a step and looks at no result. The sums stay
    in a variable on the host, so that nobody waits for them. The first step is
    left out: it warms up.

    Args:
        count: Integer. Number of replicas.

    Attributes:
        count: As given.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        with tf.init_scope(), tf.device("CPU:0"):
            zeros = tf.zeros(_HEAD + count, tf.float64)
            self._sums = tf.Variable(zeros, trainable=False)
        self._times: ReplicaTimes | None = None

    def __call__(self, step: Any, result: StepResult) -> list[Any]:
        """Refuses nothing."""
        return []

    def take_times(self, times: ReplicaTimes) -> None:
        """Takes the times of the step that is traced, or runs eagerly."""
        self._times = times

    def look_back(self, step: Any) -> None:
        """Adds the times of a step to the sums, behind its writes."""
        times, self._times = self._times, None
        if times is None:
            return
        written = [v.value for v in step.trainable[-1:]]
        ended = moment_behind([tf.convert_to_tensor(v) for v in written])
        with tf.device("CPU:0"):
            computed = tf.stack(times.computed)
            # Waiting for the slowest is no communication.
            all_computed = tf.reduce_max(computed)
            figures = [
                tf.ones((), tf.float64),
                ended - times.begun,
                tf.reduce_max(tf.stack(times.reduced)) - all_computed,
                times.reduced_bytes,
                *tf.unstack(computed - tf.stack(times.started)),
            ]
            seen = self._sums[0]
            factor = tf.cast(seen > 0, tf.float64)
            self._sums.assign_add(
                tf.concat([[1.0], factor * tf.stack(figures)], axis=0)
            )

    def read(self) -> np.ndarray:
        """Returns the sums so far.

        Returns:
            Array of steps, seconds of the steps, seconds of communication,
            bytes, and seconds of computing of each replica.
        """
        return self._sums.numpy()[1:]


def clocks_of(mode: StepMode) -> list[ReplicaClock]:
    """Returns the clocks among the checks of a mode."""
    checks = getattr(mode.check, "checks", ())
    return [check for check in checks if isinstance(check, ReplicaClock)]


def moment_behind(tensors: list[tf.Tensor]) -> tf.Tensor:
    """Returns the time at which tensors are there, on their device.

    Args:
        tensors: List of tensors of one device, none for the time at once.
    """
    waited = []
    if tensors:
        with tf.control_dependencies(tensors):
            # Kernels of a GPU are only queued when the host goes on. A copy to
            # the host waits for those before it.
            waited = [tf.reshape(tensors[-1], [-1])[:1]]
    with tf.device("CPU:0"):
        waited = [tf.identity(tensor) for tensor in waited]
        with tf.control_dependencies(waited):
            return tf.timestamp()


def bytes_of(gradients: list[Any]) -> tf.Tensor:
    """Returns how many bytes gradients are, as a float64 scalar.

    Args:
        gradients: List of dense and sparse gradients and `None`.
    """
    parts: list[tf.Tensor] = []
    for gradient in gradients:
        if isinstance(gradient, tf.IndexedSlices):
            parts += [gradient.values, gradient.indices]
        elif gradient is not None:
            parts.append(gradient)
    sizes = [tf.size(part, tf.int64) * part.dtype.size for part in parts] or [
        tf.zeros((), tf.int64)
    ]
    return tf.cast(tf.add_n(sizes), tf.float64)
