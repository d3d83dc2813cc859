"""Trying plans on a model without training it."""

from collections.abc import Iterator
from collections.abc import Sequence
import contextlib
import math
import statistics
import time
from typing import Any

import keras

from keras_tfopt.accumulation import TRAINING
from keras_tfopt.checkpoint.random_state import capture_random_state
from keras_tfopt.checkpoint.random_state import restore_random_state
from keras_tfopt.checkpoint.variables import assign
from keras_tfopt.checkpoint.variables import snapshot
from keras_tfopt.checkpoint.variables import variables_of
from keras_tfopt.memory.allocator import read_allocator_stats
from keras_tfopt.memory.allocator import reset_allocator_peak
from keras_tfopt.memory.limit import default_device
from keras_tfopt.plan import ExecutionPlan
from keras_tfopt.training.batch import to_tensors
from keras_tfopt.training.step_functions import StepFunctions
from keras_tfopt.turns import by_turns

_TINY = 1e-12


class PlanTrial:
    """Real steps of a model under a plan, that leave no trace.

    Args:
        model: A compiled Keras model with Keras' own `train_step`.
        batch: Nest `(x, y)` or `(x, y, sample_weight)`. All steps run on it.
        plan: `ExecutionPlan`.
        steps: Integer. Steps whose losses are compared.

    Attributes:
        model: The model.
        plan: The plan.
        first_seconds: Float. The first step, with tracing and compiling.
        losses: Tuple of floats. Loss of each step.
        peak_bytes: Integer or `None`. Most bytes that a step needs beyond what
            is in use before it; `None` where the device counts nothing.
        seconds: Float. Median wall time of a step, once it was measured.
    """

    def __init__(
        self, model: keras.Model, batch: Any, plan: ExecutionPlan, steps: int
    ) -> None:
        self.model = model
        self.plan = plan
        self.peak_bytes: int | None = None
        self.seconds = math.nan
        self._batch = to_tensors(batch)
        self._device = default_device()
        functions = StepFunctions(model, TRAINING)
        functions.observe(None, self._batch)
        start = time.perf_counter()
        self._function = functions.steps(plan, self._batch)
        self._value = functions.value(plan)
        with unchanged(model):
            losses = [self.run()]
            self.first_seconds = time.perf_counter() - start
            losses += [self.run() for _ in range(steps - 1)]
        self.losses = tuple(losses)

    def run(self) -> float:
        """Runs a step and returns its loss."""
        self.model.reset_metrics()
        before = reset_allocator_peak(self._device)
        # The float waits for the device.
        loss = float(self._function([self._batch], self._value)["loss"])
        after = read_allocator_stats(self._device)
        if before is not None and after is not None:
            peak = after.peak_bytes - before.current_bytes
            self.peak_bytes = max(peak, self.peak_bytes or 0)
        return loss

    def loss_difference(self, other: "PlanTrial") -> float:
        """Returns the largest relative difference of losses to another trial.

        Args:
            other: `PlanTrial` of as many steps.
        """
        return max(
            abs(ours - theirs) / max(abs(theirs), _TINY)
            for ours, theirs in zip(self.losses, other.losses, strict=True)
        )


def measure_by_turns(trials: Sequence[PlanTrial], rounds: int) -> None:
    """Sets the seconds of trials, measured so that what slows one slows all.

    Args:
        trials: Sequence of `PlanTrial`.
        rounds: Integer. Steps of each.
    """
    seconds: list[list[float]] = [[] for _ in trials]
    with contextlib.ExitStack() as stack:
        for trial in trials:
            stack.enter_context(unchanged(trial.model))
        for place, trial in by_turns(list(enumerate(trials)), rounds):
            start = time.perf_counter()
            trial.run()
            seconds[place].append(time.perf_counter() - start)
    for trial, measured in zip(trials, seconds, strict=True):
        trial.seconds = statistics.median(measured)


@contextlib.contextmanager
def unchanged(model: keras.Model) -> Iterator[None]:
    """Puts variables and random generators back to where they were.

    Args:
        model: A compiled Keras model whose optimizer is built.
    """
    variables = variables_of(model)
    before = snapshot(variables)
    random_state = capture_random_state()
    try:
        yield
    finally:
        assign(variables, before)
        restore_random_state(random_state)
