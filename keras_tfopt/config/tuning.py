"""One optimization after another, kept only where it measures better."""

import dataclasses
import time
from typing import Any

import keras
import tensorflow as tf

from keras_tfopt.config.precision import policy_of
from keras_tfopt.config.precision import recast
from keras_tfopt.config.schema import MixedPrecision
from keras_tfopt.config.tuning_report import TuningReport
from keras_tfopt.config.tuning_report import TuningRow
from keras_tfopt.errors import is_out_of_memory
from keras_tfopt.memory.allocator import read_allocator_stats
from keras_tfopt.memory.limit import default_device
from keras_tfopt.memory.limit import device_limit_bytes
from keras_tfopt.plan import ExecutionPlan
from keras_tfopt.training.batch import spec_of
from keras_tfopt.training.batch import static_rows
from keras_tfopt.training.batch import to_tensors
from keras_tfopt.training.placement import is_computed_on_host
from keras_tfopt.training.plan_trial import PlanTrial
from keras_tfopt.training.plan_trial import measure_by_turns
from keras_tfopt.training.remat import segment_length

# Steps whose losses are compared, and rounds of a measurement.
_STEPS = 3
_ROUNDS = 7
# Less of a gain may be noise.
_LEAST_GAIN = 0.02
# Remarks on what does not fit.
_TOO_LARGE = ("out of memory", "needs more memory than it may")


@dataclasses.dataclass(frozen=True)
class TuningLimits:
    """What a tuning may take, and what it must keep to.

    Args:
        budget_seconds: Float. After so long nothing new is tried.
        max_loss_difference: Float. Largest relative difference of the losses
            of the first steps to those of the baseline.
        max_utilization: Float. Share of the device's limit to use.
    """

    budget_seconds: float
    max_loss_difference: float
    max_utilization: float


class Tuning:
    """Searches for the fastest way to train that fits and computes the same.

    Args:
        model: A compiled Keras model with Keras' own `train_step`.
        batch: Nest `(x, y)` or `(x, y, sample_weight)`.
        precision: `MixedPrecision` to try.
        limits: `TuningLimits`.
    """

    def __init__(
        self,
        model: keras.Model,
        batch: Any,
        precision: MixedPrecision,
        limits: TuningLimits,
    ) -> None:
        self._model = model
        self._batch = to_tensors(batch)
        self._precision = precision
        self._limits = limits
        self._deadline = time.perf_counter() + limits.budget_seconds
        self._rows: list[TuningRow] = []
        self._baseline: PlanTrial | None = None
        self._best: PlanTrial | None = None
        self._policy: str | None = None
        self._is_short = False
        self._remark = ""

    def run(self) -> TuningReport:
        """Tries everything in turn and returns what was found."""
        self._try("baseline", self._model, ExecutionPlan())
        for name in (
            "mixed precision",
            "XLA",
            "micro-batches",
            "remat",
            "remat and offload",
        ):
            if time.perf_counter() > self._deadline:
                self._leave_out(name, "the time is used up")
                continue
            if name == "mixed precision":
                self._try_precision(name)
            elif name == "XLA":
                plan = dataclasses.replace(self._plan, jit_compile=True)
                self._try(name, self._best_model, plan)
            elif name == "micro-batches":
                self._try_microbatches(name)
            else:
                self._try_remat(name, "offload" in name)
        return TuningReport(
            tuple(self._rows), self._plan, self._policy, self._speedup()
        )

    @property
    def _plan(self) -> ExecutionPlan:
        return ExecutionPlan() if self._best is None else self._best.plan

    @property
    def _best_model(self) -> keras.Model:
        return self._model if self._best is None else self._best.model

    def _try_precision(self, name: str) -> None:
        policy, reason = policy_of(self._precision)
        if policy is None:
            self._leave_out(name, reason)
            return
        try:
            model = recast(self._model, policy)
        except Exception as error:
            self._leave_out(name, f"{type(error).__name__}: {error}")
            return
        if self._try(name, model, self._plan):
            self._policy = policy

    def _try_microbatches(self, name: str) -> None:
        """Halves the micro-batch as long as that is better."""
        size = static_rows(spec_of(self._batch)) or 1
        while size > 1:
            size = -(-size // 2)
            plan = dataclasses.replace(self._plan, microbatch_size=size)
            is_better = self._try(f"{name} of {size}", self._best_model, plan)
            # A size that does not fit says nothing about smaller ones.
            if not is_better and self._best is not None:
                return

    def _try_remat(self, name: str, offloads: bool) -> None:
        """Recomputes layers for larger micro-batches than fit without."""
        if not self._is_short:
            self._leave_out(name, "memory is not short")
            return
        if offloads and is_computed_on_host(self._model):
            self._leave_out(name, "there is no memory but the host's")
            return
        rows = static_rows(spec_of(self._batch)) or 1
        least = 0 if self._best is None else self._plan.rows_of_microbatch(rows)
        plan = dataclasses.replace(
            self._plan.compiled(self._plan.jit_compile and not offloads),
            remat=segment_length(self._best_model),
            offload=("activations",) if offloads else None,
            microbatch_size=None,
        )
        size = rows
        while size > least:
            title = f"{name}, {size} rows"
            if self._try(title, self._best_model, plan):
                return
            if self._remark not in _TOO_LARGE or size == 1:
                return
            size = -(-size // 2)
            plan = dataclasses.replace(plan, microbatch_size=size)

    def _try(self, name: str, model: keras.Model, plan: ExecutionPlan) -> bool:
        """Measures a plan beside the best one, and keeps the better."""
        try:
            trial = PlanTrial(model, self._batch, plan, _STEPS)
            competitors = [trial] if self._best is None else [self._best, trial]
            measure_by_turns(competitors, _ROUNDS)
        except Exception as error:
            if not isinstance(error, (tf.errors.OpError, ValueError)):
                raise
            reason = type(error).__name__
            if is_out_of_memory(error):
                reason = _TOO_LARGE[0]
            self._note(reason)
            self._leave_out(name, reason)
            return False
        objection = self._objection(trial)
        self._note(objection)
        self._add_row(name, trial, objection)
        if objection:
            return False
        self._baseline = self._baseline or trial
        self._best = trial
        return True

    def _note(self, remark: str) -> None:
        self._remark = remark
        self._is_short = self._is_short or remark in _TOO_LARGE

    def _objection(self, trial: PlanTrial) -> str:
        """Returns why a trial is not kept, or `""`."""
        limit = device_limit_bytes(default_device())
        stats = read_allocator_stats(default_device())
        if limit and stats and trial.peak_bytes:
            room = self._limits.max_utilization * limit
            if stats.current_bytes + trial.peak_bytes > room:
                return _TOO_LARGE[1]
        if self._baseline is None or self._best is None:
            return ""
        difference = trial.loss_difference(self._baseline)
        # A NaN is not below it either.
        if not difference <= self._limits.max_loss_difference:
            return f"losses differ by {difference:.2g}"
        if trial.seconds > (1 - _LEAST_GAIN) * self._best.seconds:
            return "not faster"
        return ""

    def _speedup(self) -> float | None:
        """Measures the best once more, beside the baseline."""
        if self._best is None or self._baseline is None:
            return None
        if self._best is not self._baseline:
            measure_by_turns([self._baseline, self._best], _ROUNDS)
        return self._baseline.seconds / self._best.seconds

    def _add_row(self, name: str, trial: PlanTrial, objection: str) -> None:
        best = self._best or trial
        self._rows.append(
            TuningRow(
                name=name,
                is_kept=not objection,
                remark=objection or "kept",
                seconds=trial.seconds,
                first_seconds=trial.first_seconds,
                ratio=trial.seconds / best.seconds,
                peak_bytes=trial.peak_bytes,
                loss_difference=trial.loss_difference(self._baseline or trial),
            )
        )

    def _leave_out(self, name: str, reason: str) -> None:
        self._rows.append(TuningRow(name, False, f"not tried: {reason}"))


def first_batch(data: Any) -> Any:
    """Returns the first batch of a dataset, or what is a batch itself.

    Args:
        data: `tf.data.Dataset`, `keras.utils.PyDataset`, or a batch.
    """
    if isinstance(data, tf.data.Dataset):
        return next(iter(data))
    if isinstance(data, keras.utils.PyDataset):
        return data[0]
    return data
