"""One step over the replicas of a strategy, in one function."""

import contextlib
from typing import Any

import keras
import tensorflow as tf

from keras_tfopt import _compat
from keras_tfopt.accumulation import SplitStep
from keras_tfopt.accumulation import StepMode
from keras_tfopt.accumulation import StepResult
from keras_tfopt.accumulation import replication
from keras_tfopt.accumulation.microstep import Share
from keras_tfopt.accumulation.pure_step import Accumulation
from keras_tfopt.accumulation.split import check_rows
from keras_tfopt.accumulation.split import count_rows
from keras_tfopt.distribution.replicas import Replicas
from keras_tfopt.plan import ExecutionPlan
from keras_tfopt.training.commit import CommitLog
from keras_tfopt.training.commit import awaited
from keras_tfopt.training.commit import chained
from keras_tfopt.training.commit import run_check
from keras_tfopt.training.commit import write
from keras_tfopt.training.commit import write_marked
from keras_tfopt.training.replica_clock import ReplicaTimes
from keras_tfopt.training.replica_clock import bytes_of
from keras_tfopt.training.replica_clock import clocks_of
from keras_tfopt.training.replica_clock import moment_behind
from keras_tfopt.training.replica_step import ReplicaStep
from keras_tfopt.training.replica_step import build_replica_steps
from keras_tfopt.training.step_function import as_function


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
        self._clocks = clocks_of(mode)
        eager = model.run_eagerly
        with _compat.unscaled_losses():
            self._parts = build_replica_steps(
                model, replicas, spec, batch, plan, mode
            )
        self.compiled = self._parts[0].compiled
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
        logs = self._run(batch, value)
        self._log.expect(1)
        return logs

    def _run_one(self, batch: list, value: tf.Tensor) -> Any:
        with _compat.unscaled_losses():
            results, outputs, before = self._run_pure(batch, value)
        return self._commit(
            results, outputs, before, list(map(count_rows, batch))
        )

    def _run_pure(self, batch: list, value: tf.Tensor) -> tuple:
        """Returns results of the replicas, all outputs, and states before."""
        run, parts = self._replicas.run, self._parts
        begun = self._moments([])
        steps = [part.step for part in parts]
        shares = run(lambda part, rows: part.measure(rows, value), parts, batch)
        wholes = replication.merge_shares(shares)
        before = run(SplitStep.start, steps)
        starts = [
            replication.start_on_replica(total, steps[0].carried, index)
            for index, total in enumerate(before)
        ]

        def accumulate(
            part: ReplicaStep, start: Accumulation, rows: Any, share: Share
        ) -> tuple[Accumulation, list[tf.Tensor], list[tf.Tensor]]:
            started = self._moments([share.rows])
            with tf.control_dependencies(started):
                total = part.accumulate(start, rows, share, value)
            total, outputs = awaited(total)
            return total, outputs, started + self._moments(outputs)

        totals, outputs, computed = _unzip(
            run(accumulate, parts, starts, batch, wholes)
        )
        barrier = _barrier(outputs)

        def finish(
            step: SplitStep, total: Accumulation
        ) -> tuple[StepResult, list[tf.Tensor], list[tf.Tensor]]:
            # A collective that waits for a replica which has failed breaks all
            # later ones. Replicas run in threads that know no dependencies.
            with tf.control_dependencies(barrier):
                gradients = self._replicas.reduce_sum(total.gradients)
                reduced = self._moments(
                    tf.nest.flatten(gradients, expand_composites=True)
                )
                result = step.finish(total._replace(gradients=gradients))
                return *awaited(result), reduced

        merged = replication.merge_replicas(totals, steps[0].carried)
        results, outputs, reduced = _unzip(run(finish, steps, merged))
        for clock in self._clocks:
            clock.take_times(
                ReplicaTimes(
                    begun[0],
                    computed[0::2],
                    computed[1::2],
                    reduced,
                    bytes_of(totals[0].gradients),
                )
            )
        return results, outputs, [total.state for total in before]

    def _moments(self, tensors: list[Any]) -> list[tf.Tensor]:
        """Returns when tensors are there, nothing if nobody asks."""
        if not self._clocks:
            return []
        return [moment_behind([t for t in tensors if t is not None])]

    def _commit(
        self,
        results: list[StepResult],
        outputs: list[tf.Tensor],
        before: list[list[tf.Tensor]],
        rows: list[tf.Tensor],
    ) -> Any:
        model, steps = self._model, [part.step for part in self._parts]
        step = steps[0]
        carried = step.carried
        after = replication.sum_states([r.updates for r in results], carried)
        whole = results[0]._replace(updates=after)
        with _values(carried, replication.sum_states(before, carried)):
            checks = run_check(step, whole, outputs)

        def write_behind(begin: list[tf.Operation]) -> None:
            def write_one(step: SplitStep, result: StepResult) -> None:
                with tf.control_dependencies(begin):
                    write(model, step, result)

            # Threads take turns, so what they share is replaced outside.
            with chained(model, step), _without_reduction(model, step):
                self._replicas.run(write_one, steps, results)

        write_marked(self._log, [*outputs, *checks], write_behind, step)
        if whole.logs:
            return replication.average_logs([r.logs for r in results], rows)
        with _values(carried, after):
            return model.get_metrics_result()


def _unzip(
    returned: list[tuple[Any, list[tf.Tensor], list[tf.Tensor]]],
) -> tuple[list[Any], list[tf.Tensor], list[tf.Tensor]]:
    """Returns results, what can be waited for, and moments of all replicas."""
    results, outputs, moments = zip(*returned, strict=True)
    return list(results), sum(outputs, []), sum(moments, [])


def _barrier(outputs: list[tf.Tensor]) -> list[tf.Operation]:
    """Returns what waits for all outputs."""
    if tf.executing_eagerly():
        return []
    with tf.control_dependencies(outputs):
        return [tf.no_op()]


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
