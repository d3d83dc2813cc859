"""One step over the replicas of a strategy: its parts, and one function."""

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


class ReplicatedStep:
    """A step over a batch whose parts lie on the replicas of a strategy.

    Replicas are treated as micro-batches are: rows and denominators are summed
    over all of them first, so that their gradients add up to that of the batch,
    however many rows each has. The gradients are summed once per step, before
    they are clipped or checked. No replica writes before all have succeeded.

    Its parts stand between the moments at which replicas talk: `measure` and
    `accumulate` are each replica's own, `share` and `finish` are for all.

    Args:
        model: A compiled Keras model.
        replicas: `Replicas` of its strategy.
        spec: List of nests of the specs of the parts of a batch.
        batch: The first batch, as a list of its parts.
        plan: The `ExecutionPlan`; its micro-batches are those of each replica.
        mode: `StepMode`.

    Attributes:
        log: `CommitLog`.
        parts: List of the `ReplicaStep` of each replica of this process.

    Raises:
        UnsplittableError: If the model does something in its forward pass that
            would not be the same in parts.
    """

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
        self._clocks = clocks_of(mode)
        # Of the step that is traced, or runs eagerly.
        self._begun: list[tf.Tensor] = []
        self._computed: list[tf.Tensor] = []
        self.log = CommitLog()
        with _compat.unscaled_losses():
            self.parts = build_replica_steps(
                model, replicas, spec, batch, plan, mode
            )
        self._steps = [part.step for part in self.parts]

    def measure(self, batch: list, value: tf.Tensor) -> list[Share]:
        """Returns rows and denominators of the replicas' parts of a batch."""
        self._begun = self._moments([])
        with _compat.unscaled_losses():
            return self._replicas.run(
                lambda part, rows: part.measure(rows, value), self.parts, batch
            )

    def share(self, shares: list[Share]) -> list[Share]:
        """Returns what the replicas here must know of the whole batch.

        Args:
            shares: What `measure` returned, of the replicas of all processes.
        """
        first = self._replicas.first
        return replication.merge_shares(shares)[
            first : first + self._replicas.count
        ]

    def accumulate(
        self, batch: list, shares: list[Share], value: tf.Tensor
    ) -> tuple[list[Accumulation], list[list[tf.Tensor]], list[tf.Tensor]]:
        """Computes the gradients of the replicas' parts of a batch.

        Args:
            batch: List of the parts.
            shares: What `share` returned.
            value: Int32 scalar. `accumulation_steps` or `microbatch_size` of
                each replica.

        Returns:
            Tuple of the replicas' accumulations, the values of their state
            before, and what can be waited for.
        """
        replicas = self._replicas
        before = replicas.run(SplitStep.start, self._steps)
        starts = [
            replication.start_on_replica(
                total, self._steps[0].carried, replicas.first + index
            )
            for index, total in enumerate(before)
        ]

        def add(
            part: ReplicaStep, start: Accumulation, rows: Any, share: Share
        ) -> tuple[Accumulation, list[tf.Tensor], list[tf.Tensor]]:
            started = self._moments([share.rows])
            with tf.control_dependencies(started):
                total = part.accumulate(start, rows, share, value)
            total, outputs = awaited(total)
            return total, outputs, started + self._moments(outputs)

        with _compat.unscaled_losses():
            totals, outputs, self._computed = _unzip(
                replicas.run(add, self.parts, starts, batch, shares)
            )
        return totals, [total.state for total in before], outputs

    def finish(
        self,
        totals: list[Accumulation],
        before: list[list[tf.Tensor]],
        rows: list[tf.Tensor],
        outputs: list[tf.Tensor],
    ) -> Any:
        """Adds the gradients up, writes the results, and returns the logs.

        Args:
            totals: What `accumulate` returned.
            before: The same.
            rows: Rows of each part of the batch.
            outputs: What to wait for.
        """
        replicas, carried = self._replicas, self._steps[0].carried
        barrier = _barrier(outputs)
        known = replicas.everywhere(
            [
                (t.moments, t.state, b)
                for t, b in zip(totals, before, strict=True)
            ]
        )
        moments, after, before = map(list, zip(*known, strict=True))
        merged = replication.merge_replicas(totals, moments, after[0], carried)

        def finish_one(
            step: SplitStep, total: Accumulation
        ) -> tuple[StepResult, list[tf.Tensor], list[tf.Tensor]]:
            # A collective that waits for a replica which has failed breaks all
            # later ones. Replicas run in threads that know no dependencies.
            with tf.control_dependencies(barrier):
                gradients = replicas.reduce_sum(total.gradients)
                reduced = self._moments(
                    tf.nest.flatten(gradients, expand_composites=True)
                )
                result = step.finish(total._replace(gradients=gradients))
                return *awaited(result), reduced

        results, outputs, reduced = _unzip(
            replicas.run(finish_one, self._steps, merged)
        )
        self._tell_clocks(reduced, totals[0].gradients)
        sums = [
            replication.sum_states(values, carried)
            for values in (before, after)
        ]
        self._commit(results, outputs, *sums)
        if results[0].logs:
            logs = replicas.everywhere(
                [
                    (result.logs, n)
                    for result, n in zip(results, rows, strict=True)
                ]
            )
            return replication.average_logs(*map(list, zip(*logs, strict=True)))
        with _values(carried, sums[1]):
            return self._model.get_metrics_result()

    def _moments(self, tensors: list[Any]) -> list[tf.Tensor]:
        """Returns when tensors are there, nothing if nobody asks."""
        if not self._clocks:
            return []
        return [moment_behind([t for t in tensors if t is not None])]

    def _tell_clocks(
        self, reduced: list[tf.Tensor], gradients: list[Any]
    ) -> None:
        for clock in self._clocks:
            clock.take_times(
                ReplicaTimes(
                    self._begun[0],
                    self._computed[0::2],
                    self._computed[1::2],
                    reduced,
                    bytes_of(gradients),
                )
            )

    def _commit(
        self,
        results: list[StepResult],
        outputs: list[tf.Tensor],
        before: list[tf.Tensor],
        after: list[tf.Tensor],
    ) -> None:
        model, step = self._model, self._steps[0]
        with _values(step.carried, before):
            checks = run_check(
                step, results[0]._replace(updates=after), outputs
            )

        def write_behind(begin: list[tf.Operation]) -> None:
            def write_one(step: SplitStep, result: StepResult) -> None:
                with tf.control_dependencies(begin):
                    write(model, step, result)

            # Threads take turns, so what they share is replaced outside.
            with chained(model, step), _without_reduction(model, step):
                self._replicas.run(write_one, self._steps, results)

        write_marked(self.log, [*outputs, *checks], write_behind, step)


class ReplicatedStepFunction:
    """Runs a `ReplicatedStep` whose replicas live in one process, as one.

    Args:
        model: A compiled Keras model.
        replicas: `Replicas` of its strategy.
        spec: List of nests of the specs of the parts of a batch.
        batch: The first batch, as a list of its parts.
        plan: The `ExecutionPlan`.
        mode: `StepMode`.

    Raises:
        UnsplittableError: As `ReplicatedStep`.
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
        self._step = ReplicatedStep(model, replicas, spec, batch, plan, mode)
        self.settle = self._step.log.settle
        self.compiled = self._step.parts[0].compiled
        eager = model.run_eagerly
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
        self._step.log.expect(1)
        return logs

    def _run_one(self, batch: list, value: tf.Tensor) -> Any:
        step = self._step
        shares = step.share(step.measure(batch, value))
        totals, before, outputs = step.accumulate(batch, shares, value)
        return step.finish(
            totals, before, list(map(count_rows, batch)), outputs
        )


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
