"""One step over the replicas of several processes, which agree on it."""

from collections.abc import Callable
import dataclasses
from typing import Any
from typing import NamedTuple
import zlib

import keras
import tensorflow as tf

from keras_tfopt.accumulation import StepMode
from keras_tfopt.accumulation.microstep import Share
from keras_tfopt.accumulation.split import check_rows
from keras_tfopt.accumulation.split import count_rows
from keras_tfopt.distribution.agreement import Agreement
from keras_tfopt.distribution.agreement import lost_workers
from keras_tfopt.errors import InterruptedCommitError
from keras_tfopt.errors import WorkerLost
from keras_tfopt.plan import ExecutionPlan
from keras_tfopt.training.batch import spec_of
from keras_tfopt.training.failure import describe_batch
from keras_tfopt.training.replicated_step import ReplicatedStep
from keras_tfopt.training.step_function import as_function
from keras_tfopt.training.step_gate import REFUSAL

# Rows of a batch on the replica that has most of them, and a key to the rest.
Note = Callable[[int, str], None]


class AgreedStepFunction:
    """Runs a `ReplicatedStep` whose replicas live in several processes.

    What may fail on one worker alone, forward and backward pass, runs in
    functions of its own. Behind each of them the workers agree whether all have
    succeeded; if not, all raise the same error and nothing is written.

    Args:
        model: A compiled Keras model.
        agreement: `Agreement` of the workers of its strategy.
        spec: List of nests of the specs of the parts of a batch.
        batch: The first batch, as a list of the parts of this process.
        plan: The `ExecutionPlan`.
        mode: `StepMode`.
        note: Callable that is given rows and key of each batch, the same on all
            workers.

    Raises:
        UnsplittableError: As `ReplicatedStep`.
    """

    capacity = 1

    def __init__(
        self,
        model: keras.Model,
        agreement: Agreement,
        spec: list,
        batch: list,
        plan: ExecutionPlan,
        mode: StepMode,
        note: Note,
    ) -> None:
        self._step = step = ReplicatedStep(
            model, agreement.replicas, spec, batch, plan, mode
        )
        self._agreement = agreement
        self._plan = plan
        self._note = note
        self._is_joint = False
        self.compiled = step.parts[0].compiled
        size = step.parts[0].step.like.denominators.shape[0]
        self._nothing = Share(tf.constant(0), tf.zeros((size,)), tf.constant(0))
        eager = model.run_eagerly
        self._measure = as_function(step.measure, eager)
        self._accumulate = as_function(step.accumulate, eager)
        self._finish = as_function(step.finish, eager)
        if not eager:
            number = tf.TensorSpec((), tf.int32)
            shares = [spec_of(self._nothing)] * len(spec)
            self._measure = self._measure.get_concrete_function(spec, number)
            self._accumulate = self._accumulate.get_concrete_function(
                spec, shares, number
            )
            totals, before, _ = self._accumulate.structured_outputs
            rows = [number] * len(spec)
            self._finish = self._finish.get_concrete_function(
                totals, before, rows, []
            )

    def __call__(self, batches: list[list], value: tf.Tensor) -> Any:
        """Runs one step and returns its logs.

        Args:
            batches: List with one list of the parts of this process.
            value: Int32 scalar. `accumulation_steps` or `microbatch_size` of
                each replica.

        Returns:
            Dict of the logs of the step.
        """
        (batch,) = batches
        shares = self._share_all(batch, value)
        totals, before = self._accumulate_all(batch, shares, value)
        rows = list(map(count_rows, batch))
        self._is_joint = True
        with lost_workers():
            logs = self._finish(totals, before, rows, [])
        self._is_joint = False
        self._step.log.expect(1)
        return logs

    def settle(self, error: BaseException) -> int:
        """Returns how many steps were committed before an error.

        Raises:
            InterruptedCommitError: If the others cannot know of the error.
        """
        is_joint, self._is_joint = self._is_joint, False
        if isinstance(error, WorkerLost):
            return 0
        done = self._step.log.settle(error)
        # What a gate refuses, all refuse.
        if is_joint and REFUSAL not in str(error):
            raise InterruptedCommitError(
                "A step failed on one worker where the others wait for it. "
                f"Received: {type(error).__name__}: {error}. Expected: room to "
                "add up gradients and to write. End all workers and start them "
                "again from a backup."
            ) from error
        return done

    def _share_all(self, batch: list, value: tf.Tensor) -> list[Share]:
        shares, error = _attempt(lambda: self._measure_checked(batch, value))
        if shares is None:
            shares = [self._nothing] * len(batch)
        facts = [_Facts.of(part, self._plan) for part in batch]
        told, error = self._agreement.exchange(
            list(zip(facts, shares, strict=True)), error
        )
        everywhere = [_Facts(*map(int, facts)) for facts, _ in told]
        self._note(*_merge_facts(everywhere))
        if error is not None:
            raise error
        return self._step.share([share for _, share in told])

    def _accumulate_all(
        self, batch: list, shares: list[Share], value: tf.Tensor
    ) -> tuple[list, list]:
        result, error = _attempt(lambda: self._accumulate(batch, shares, value))
        _, error = self._agreement.exchange([()] * len(batch), error)
        if error is not None:
            raise error
        totals, before, _ = result
        return totals, before

    def _measure_checked(self, batch: list, value: tf.Tensor) -> list[Share]:
        for part in batch:
            check_rows(part)
        return self._measure(batch, value)


class _Facts(NamedTuple):
    """What workers must know of a replica's part of a batch.

    Attributes:
        rows: Integer.
        key: Integer. Stands for its shapes and dtypes apart from the rows.
        plan: Integer. Stands for the plan that it runs under.
    """

    rows: int
    key: int
    plan: int

    @classmethod
    def of(cls, part: Any, plan: ExecutionPlan) -> "_Facts":
        """Returns the facts of a part, as collectives take them."""
        rows, key = describe_batch(part)
        # XLA is no matter of the split: each worker compiles what it can.
        plan = dataclasses.replace(plan, jit_compile=False)
        numbers = rows or 0, _number(key), _number(repr(plan))
        return cls(*(tf.constant(number, tf.int64) for number in numbers))


def _merge_facts(facts: list[_Facts]) -> tuple[int, str]:
    """Returns the most rows and a key, the same on all workers.

    Raises:
        RuntimeError: If the workers do not run under the same plan.
    """
    if len({one.plan for one in facts}) > 1:
        raise RuntimeError(
            "Workers must run a step under the same plan. Received: another "
            "plan on some of them, changed by a callback or by "
            "`model.change_plan` that did not do the same on all. Expected: "
            "the same changes at the same steps on all workers."
        )
    key = " ".join(f"{one.key:08x}" for one in facts)
    return max(one.rows for one in facts), key


def _number(text: str) -> int:
    return zlib.crc32(text.encode())


def _attempt(work: Callable[[], Any]) -> tuple[Any, Exception | None]:
    """Returns what work returned or raised."""
    try:
        return work(), None
    except Exception as error:
        return None, error
