"""Which function runs the steps of a model: on one device or on replicas."""

from collections.abc import Callable
from typing import Any
import warnings

import keras

from keras_tfopt import _compat
from keras_tfopt.accumulation import BranchWriteError
from keras_tfopt.accumulation import StepMode
from keras_tfopt.accumulation import UnsplittableError
from keras_tfopt.accumulation.split import count_rows
from keras_tfopt.accumulation.split import partition_by_count
from keras_tfopt.accumulation.split import take_rows
from keras_tfopt.distribution.agreement import Agreement
from keras_tfopt.distribution.agreement import agreement_of
from keras_tfopt.distribution.replicas import Replicas
from keras_tfopt.distribution.replicas import is_synchronous
from keras_tfopt.distribution.replicas import spans_workers
from keras_tfopt.plan import ExecutionPlan
from keras_tfopt.training.agreed_step import AgreedStepFunction
from keras_tfopt.training.batch import static_rows
from keras_tfopt.training.batch import to_tensors
from keras_tfopt.training.failure import describe_batch
from keras_tfopt.training.padded_function import padded_step_function
from keras_tfopt.training.replicated_step import ReplicatedStepFunction
from keras_tfopt.training.step_function import split_step_function
from keras_tfopt.training.step_function import whole_step_function
from keras_tfopt.training.stock_step import StockStepFunction


class LocalFactory:
    """Makes the functions of a model without a distribution strategy.

    Args:
        model: A compiled Keras model.
    """

    def __init__(self, model: keras.Model) -> None:
        self._model = model
        self.convert = to_tensors
        self.rows_of = static_rows
        self.describe = describe_batch

    def is_shape_bound(self, plan: ExecutionPlan) -> bool:
        """Whether a plan's function is for one number of rows only.

        XLA needs the sizes of micro-batches fixed, which padding sees to.
        """
        return plan.is_split and plan.jit_compile and not plan.padded_rows

    def make(
        self, spec: Any, batch: Any, plan: ExecutionPlan, mode: StepMode
    ) -> Any:
        """Makes a function; for its arguments see `split_step_function`."""
        make: Callable = whole_step_function
        if plan.padded_rows:
            make = padded_step_function
        elif plan.is_split:
            make = split_step_function
        is_bound = self.is_shape_bound(plan)
        capacity = 1 if is_bound else self._model.steps_per_execution
        return make(self._model, spec, batch, plan, mode, capacity)


class ReplicatedFactory:
    """Makes the functions of a model under a distribution strategy.

    Args:
        model: A compiled Keras model.
        replicas: `Replicas` of its strategy.
    """

    def __init__(self, model: keras.Model, replicas: Replicas) -> None:
        self._model = model
        self._replicas = replicas
        self.describe = describe_batch
        self.rows_of = _rows_of_parts

    def convert(self, batch: Any) -> list:
        """Returns a delivered batch as the list of the replicas' parts."""
        parts = self._replicas.local_parts(batch)
        if parts is not None:
            return [to_tensors(part) for part in parts]
        # `train_on_batch` distributes nothing.
        return _divide(to_tensors(batch), self._replicas.count)

    def is_shape_bound(self, plan: ExecutionPlan) -> bool:
        """Whether a plan's function is for one number of rows only.

        Each replica's part of a batch is a micro-batch even of an unsplit one.
        """
        return plan.jit_compile

    def make(
        self, spec: list, batch: list, plan: ExecutionPlan, mode: StepMode
    ) -> Any:
        """Makes a function; see `ReplicatedStepFunction`."""
        try:
            return ReplicatedStepFunction(
                self._model, self._replicas, spec, batch, plan, mode
            )
        except (BranchWriteError, UnsplittableError) as error:
            return _stock(self._model, self._replicas, plan, mode, error)


class WorkersFactory:
    """Makes the functions of a model whose replicas live in several processes.

    Args:
        model: A compiled Keras model.
        agreement: `Agreement` of the workers of its strategy.
    """

    def __init__(self, model: keras.Model, agreement: Agreement) -> None:
        self._model = model
        self._replicas = agreement.replicas
        self._agreement = agreement
        self.rows_of = _rows_of_parts
        self._facts: tuple[int | None, str] = (None, "")

    def convert(self, batch: Any) -> list:
        """Returns a delivered batch as the list of the parts of this worker."""
        parts = self._replicas.local_parts(batch)
        # A worker with one replica is delivered its part as it is.
        return [to_tensors(part) for part in parts or [batch]]

    def describe(self, batch: Any) -> tuple[int | None, str]:
        """Returns what the workers agreed on for the batch that ran last."""
        return self._facts

    def is_shape_bound(self, plan: ExecutionPlan) -> bool:
        """Whether a plan's function is for one number of rows only."""
        return plan.jit_compile

    def make(
        self, spec: list, batch: list, plan: ExecutionPlan, mode: StepMode
    ) -> Any:
        """Makes a function; see `AgreedStepFunction`."""
        try:
            return AgreedStepFunction(
                self._model,
                self._agreement,
                spec,
                batch,
                plan,
                mode,
                self._note,
            )
        except (BranchWriteError, UnsplittableError) as error:
            return _stock(self._model, self._replicas, plan, mode, error)

    def _note(self, rows: int, key: str) -> None:
        self._facts = rows, key


def step_factory(
    model: keras.Model,
) -> LocalFactory | ReplicatedFactory | WorkersFactory:
    """Returns what makes the functions of a model."""
    strategy = _compat.strategy_of(model)
    if not is_synchronous(strategy):
        return LocalFactory(model)
    if spans_workers(strategy):
        return WorkersFactory(model, agreement_of(strategy))
    return ReplicatedFactory(model, Replicas(strategy))


def _stock(
    model: keras.Model,
    replicas: Replicas,
    plan: ExecutionPlan,
    mode: StepMode,
    error: Exception,
) -> StockStepFunction:
    """Returns Keras' own step for what cannot be divided, unless it must be."""
    if plan.is_split:
        raise error
    warnings.warn(
        f"'{model.name}' cannot be divided among replicas exactly. Its step "
        "runs as Keras makes it: one that fails may leave a trace and is not "
        f"run again. {error}",
        stacklevel=3,
    )
    spans = replicas.total > replicas.count
    return StockStepFunction(model, mode, replicas.distribute, spans)


def _rows_of_parts(batch: list) -> int | None:
    """Returns the rows of all parts here, `None` if they are not known."""
    rows = [static_rows(part) for part in batch]
    known = [number for number in rows if number is not None]
    return sum(known) if len(known) == len(rows) else None


def _divide(batch: Any, count: int) -> list:
    partition = partition_by_count(int(count_rows(batch)), count)
    sizes = [partition.first_size] * partition.first_count
    sizes += [partition.second_size] * partition.second_count
    sizes += [0] * (count - len(sizes))
    starts = [sum(sizes[:index]) for index in range(count)]
    return [
        take_rows(batch, start, size)
        for start, size in zip(starts, sizes, strict=True)
    ]
