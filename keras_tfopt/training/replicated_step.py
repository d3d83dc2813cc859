"""One step over the replicas of a strategy, in one function."""

from collections.abc import Callable
import contextlib
from typing import Any

import keras
import tensorflow as tf

from keras_tfopt import _compat
from keras_tfopt.accumulation import SplitStep
from keras_tfopt.accumulation import StepMode
from keras_tfopt.accumulation import StepResult
from keras_tfopt.accumulation import UnsplittableError
from keras_tfopt.accumulation import build_split_step
from keras_tfopt.accumulation import replication
from keras_tfopt.accumulation import retrace
from keras_tfopt.accumulation.microstep import Share
from keras_tfopt.accumulation.pure_step import Accumulation
from keras_tfopt.accumulation.split import Partition
from keras_tfopt.accumulation.split import check_rows
from keras_tfopt.accumulation.split import count_rows
from keras_tfopt.distribution.replicas import Replicas
from keras_tfopt.plan import ExecutionPlan
from keras_tfopt.training.batch import relax_rows
from keras_tfopt.training.batch import static_rows
from keras_tfopt.training.commit import CommitLog
from keras_tfopt.training.commit import awaited
from keras_tfopt.training.commit import chained
from keras_tfopt.training.commit import run_check
from keras_tfopt.training.commit import write
from keras_tfopt.training.commit import write_marked
from keras_tfopt.training.step_function import as_compiled
from keras_tfopt.training.step_function import as_function
from keras_tfopt.training.step_function import partition_function
from keras_tfopt.training.step_function import split_number


class ReplicatedStepFunction:
    """Runs a step over a batch whose parts lie on the replicas of a strategy.

    Replicas are treated as micro-batches are: rows and denominators are summed
    over all of them first, so that their gradients add up to that of the batch,
    however many rows each has. The gradients are summed once per step, before
    they are clipped or checked. No replica writes before all have succeeded.

    Args:
        model: A compiled Keras model.
        replicas: `Replicas` of its strategy.
        spec: List of nests of the specs of the parts of a batch.
        batch: The first batch, as a list of its parts.
        plan: The `ExecutionPlan`; its micro-batches are those of each replica.
        mode: `StepMode`.

    Raises:
        UnsplittableError: If the model does something in its forward pass that
            would not be the same in parts.
    """

    # A nested function would hide from collectives that it stands in a loop.
    capacity = 1
    compiled = None

    def __init__(
        self,
        model: keras.Model,
        replicas: Replicas,
        spec: list,
        batch: list,
        plan: ExecutionPlan,
        mode: StepMode,
    ) -> None:
        self._model = model
        self._replicas = replicas
        self._log = CommitLog()
        self.settle = self._log.settle
        eager = model.run_eagerly
        with _compat.unscaled_losses():
            self._steps = _build(model, replicas, spec, batch, mode, plan)
            self._measures, self._accumulates = zip(
                *(
                    _parts(step, part, plan)
                    for step, part in zip(self._steps, spec, strict=True)
                ),
                strict=True,
            )
            self._run = as_function(self._run_one, eager)
            if not eager:
                self._run = self._run.get_concrete_function(
                    spec, tf.TensorSpec((), tf.int32)
                )

    @property
    def graph(self) -> tf.Graph | None:
        """What runs, or `None` where it runs eagerly."""
        return getattr(self._run, "graph", None)

    def __call__(self, batches: list[list], value: tf.Tensor) -> Any:
        """Runs one step and returns its logs.

        Args:
            batches: List with one list of parts of a batch.
            value: Int32 scalar. `accumulation_steps` or `microbatch_size` of
                each replica.

        Returns:
            Dict of the logs of the step.
        """
        (batch,) = batches
        for part in batch:
            check_rows(part)
        with _compat.unscaled_losses():
            logs = self._run(batch, value)
        self._log.expect(1)
        return logs

    def _run_one(self, batch: list, value: tf.Tensor) -> Any:
        run, steps = self._replicas.run, self._steps
        values = [value] * self._replicas.count
        shares = run(_call, self._measures, batch, values)
        wholes = replication.merge_shares(shares)
        before = run(SplitStep.start, steps)
        starts = [
            replication.start_on_replica(total, steps[0].carried, index)
            for index, total in enumerate(before)
        ]

        def accumulate(
            function: Callable, start: Accumulation, part: Any, share: Share
        ) -> tuple[Accumulation, list[tf.Tensor]]:
            return awaited(function(start, part, share, value))

        totals, outputs = _unzip(
            run(accumulate, self._accumulates, starts, batch, wholes)
        )
        barrier = _barrier(outputs)

        def reduce(total: Accumulation) -> tuple[Accumulation, list[tf.Tensor]]:
            # A collective that waits for a replica which has failed breaks all
            # later ones. Replicas run in threads that know no dependencies.
            with tf.control_dependencies(barrier):
                gradients = self._replicas.reduce_sum(total.gradients)
                return awaited(total._replace(gradients=gradients))

        totals, outputs = _unzip(run(reduce, totals))
        return self._commit(
            replication.merge_replicas(totals, steps[0].carried),
            outputs,
            [total.state for total in before],
            [share.rows for share in shares],
        )

    def _commit(
        self,
        totals: list[Accumulation],
        outputs: list[tf.Tensor],
        before: list[list[tf.Tensor]],
        rows: list[tf.Tensor],
    ) -> Any:
        model, step = self._model, self._steps[0]
        carried = step.carried
        after = replication.sum_states([t.state for t in totals], carried)
        whole = StepResult(totals[0].gradients, after, totals[0].logs)
        with _values(carried, replication.sum_states(before, carried)):
            checks = run_check(step, whole, outputs)

        def write_behind(begin: list[tf.Operation]) -> None:
            def write_one(step: SplitStep, total: Accumulation) -> None:
                with tf.control_dependencies(begin):
                    write(model, step, step.finish(total))

            # Threads take turns, so what they share is replaced outside.
            with chained(model, step), _without_reduction(model, step):
                self._replicas.run(write_one, self._steps, totals)

        write_marked(self._log, [*outputs, *checks], write_behind, step)
        if totals[0].logs:
            return replication.average_logs([t.logs for t in totals], rows)
        with _values(carried, after):
            return model.get_metrics_result()


def _build(
    model: keras.Model,
    replicas: Replicas,
    spec: list,
    batch: list,
    mode: StepMode,
    plan: ExecutionPlan,
) -> list[SplitStep]:
    """Makes the pure step of each replica; its trace reads variables there."""
    eager = model.run_eagerly
    example = batch[0] if eager else relax_rows(spec[0])
    steps: list[SplitStep] = []

    def build() -> SplitStep:
        # The replicas are visited one after the other.
        if not steps:
            steps.append(
                build_split_step(model, example, eager, 1.0, mode, plan)
            )
        elif eager:
            steps.append(steps[0])
        else:
            steps.append(retrace(steps[0], example))
        return steps[-1]

    result: list[SplitStep] = []

    def build_all() -> None:
        steps.clear()
        result[:] = replicas.run(build)

    # In a function, because TensorFlow warns of replicas outside of one.
    tf.function(build_all, autograph=False).get_concrete_function()
    unmergeable = replication.unmergeable_state(model, result[0].carried)
    if unmergeable:
        raise UnsplittableError(
            "Replicas cannot agree about the state of this model. Received: "
            f"{', '.join(unmergeable)}, declared with `register_row_state`. "
            "Expected: metrics, seeds and BatchNormalization only. Train "
            "without a distribution strategy."
        )
    return result


def _parts(
    step: SplitStep, spec: Any, plan: ExecutionPlan
) -> tuple[Callable, Callable]:
    """Returns what counts and what runs the micro-batches of one replica."""
    partition = partition_function(plan)
    if plan.jit_compile:
        # XLA needs the sizes fixed.
        fixed = partition(static_rows(spec), split_number(plan))
        measure = as_compiled(lambda part: _measure(step, part, fixed), True)
        accumulate = as_compiled(
            lambda start, part, share: step.accumulate(
                start, part, share, fixed
            ),
            True,
        )
        return (
            lambda part, value: measure(part),
            lambda start, part, share, value: accumulate(start, part, share),
        )
    return (
        lambda part, value: _measure(
            step, part, partition(count_rows(part), value)
        ),
        lambda start, part, share, value: step.accumulate(
            start, part, share, partition(count_rows(part), value)
        ),
    )


def _measure(step: SplitStep, part: Any, partition: Partition) -> Share:
    denominators = step.count_denominators(part, partition)
    return Share(count_rows(part), denominators, tf.constant(0))


def _unzip(
    results: list[tuple[Accumulation, list[tf.Tensor]]],
) -> tuple[list[Accumulation], list[tf.Tensor]]:
    """Returns what each replica returned, and all that can be waited for."""
    totals = [total for total, _ in results]
    return totals, [output for _, outputs in results for output in outputs]


def _barrier(outputs: list[tf.Tensor]) -> list[tf.Operation]:
    """Returns what waits for all outputs."""
    if tf.executing_eagerly():
        return []
    with tf.control_dependencies(outputs):
        return [tf.no_op()]


def _call(function: Callable, *arguments: Any) -> Any:
    return function(*arguments)


def _values(
    variables: list[keras.Variable], values: list[tf.Tensor]
) -> contextlib.AbstractContextManager:
    """Returns what lets variables read as given, without asking replicas."""
    mapping = list(zip(variables, values, strict=True))
    return keras.StatelessScope(state_mapping=mapping)


def _without_reduction(
    model: keras.Model, step: SplitStep
) -> contextlib.AbstractContextManager:
    if step.mode.differentiates and model.optimizer is not None:
        return _compat.without_reduction(model.optimizer)
    return contextlib.nullcontext()
