"""From records to the values of metrics."""

import collections
from collections.abc import Iterable
import math
from typing import Any

from keras_tfopt.telemetry.catalogue_training import PLAN_REASONS
from keras_tfopt.telemetry.loss_tracking import RunningMean
from keras_tfopt.telemetry.loss_tracking import SpikeDetector
from keras_tfopt.telemetry.plan_changes import kind_of
from keras_tfopt.telemetry.records import CallRecord
from keras_tfopt.telemetry.records import FailedRetry
from keras_tfopt.telemetry.records import PlanChange
from keras_tfopt.telemetry.records import RefusedStep
from keras_tfopt.telemetry.store import MetricStore

_WAIT_WINDOW_SECONDS = 15.0
_OF_LOSS = ("loss_spikes_total", "nonfinite_steps_total")


class TrainingFigures:
    """Enters what happened in training into the metrics.

    Sums are made here and entered once for all records that came together.

    Args:
        store: `MetricStore`.
    """

    def __init__(self, store: MetricStore) -> None:
        self._store = store
        self._mean = RunningMean()
        self._spikes = SpikeDetector()
        self._last_reason: str | None = None
        self._sums: dict[str, float] = collections.defaultdict(float)
        self._gauges: dict[str, float | None] = {}
        self._pending_seconds = 0.0
        self._waits: collections.deque = collections.deque()
        self._wait_sums = [0.0, 0.0]

    def begin_fit(self, has_plan: bool) -> None:
        """Makes the counters known that begin at zero.

        Args:
            has_plan: Boolean. Whether the steps run under a plan.
        """
        self._pending_seconds = 0.0
        self._waits.clear()
        self._wait_sums = [0.0, 0.0]
        # A series that begins with its first event hides it from `increase`.
        for name in ("steps_total", "telemetry_overhead_seconds_total"):
            self._store.add(name, 0)
        for name in _OF_LOSS:
            self._store.add(name, 0)
        if has_plan:
            self._know_plan_changes()

    def take(self, records: Iterable[Any]) -> None:
        """Enters records, oldest first."""
        for record in records:
            if isinstance(record, CallRecord):
                self._take_call(record)
            elif isinstance(record, PlanChange):
                self._take_change(record)
            elif isinstance(record, FailedRetry):
                self._take_failure()
            elif isinstance(record, RefusedStep):
                is_spike = record.is_finite
                self._sums[_OF_LOSS[0] if is_spike else _OF_LOSS[1]] += 1
        for name, amount in self._sums.items():
            self._store.add(name, amount)
        for name, value in self._gauges.items():
            self._store.set(name, value)
        self._sums.clear()
        self._gauges.clear()

    def _take_call(self, record: CallRecord) -> None:
        sums = self._sums
        sums["telemetry_overhead_seconds_total"] += record.hook_seconds
        self._gauges["last_step_timestamp_seconds"] = record.time
        self._pending_seconds += record.seconds
        if record.steps:
            # Batches that are gathered make one update of several calls.
            sums["steps_total"] += record.steps
            self._store.observe(
                "step_duration_seconds",
                self._pending_seconds / record.steps,
                record.steps,
            )
            self._pending_seconds = 0.0
        if record.rows:
            sums["samples_total"] += record.rows
        elif record.rows is None:
            self._store.explain_absence(
                "samples_total",
                "neither the data nor the metric of the loss tells the rows",
            )
        self._take_wait(record)
        self._take_loss(record)
        if record.plan is not None and record.batch_rows:
            size = record.plan.rows_of_microbatch(record.batch_rows)
            self._gauges["microbatch_size"] = size
            self._gauges["accumulation_steps"] = -(-record.batch_rows // size)

    def _take_wait(self, record: CallRecord) -> None:
        if record.wait_seconds is None:
            self._store.explain_absence(
                "data_wait_ratio",
                "Keras draws batches inside of its compiled step; an "
                "AccumModel, or a callback that guards steps, measures it",
            )
            return
        self._sums["data_wait_seconds_total"] += record.wait_seconds
        entry = (record.time, record.wait_seconds, record.loop_seconds)
        self._waits.append(entry)
        self._wait_sums[0] += entry[1]
        self._wait_sums[1] += entry[2]
        while record.time - self._waits[0][0] > _WAIT_WINDOW_SECONDS:
            _, wait, loop = self._waits.popleft()
            self._wait_sums[0] -= wait
            self._wait_sums[1] -= loop
        wait, loop = self._wait_sums
        if loop > 0:
            self._gauges["data_wait_ratio"] = min(max(wait / loop, 0.0), 1.0)

    def _take_loss(self, record: CallRecord) -> None:
        if record.is_first:
            self._mean.restart(is_known=record.first_batch == 0)
        if record.mean_loss is None:
            # Batches that are gathered have no loss yet.
            if record.steps:
                self._forget_loss()
            return
        self._gauges["loss"] = record.mean_loss
        if not math.isfinite(record.mean_loss):
            self._sums["nonfinite_steps_total"] += self._mean.is_finite
            self._mean.lose(is_finite=False)
            self._gauges["step_loss"] = None
            return
        self._mean.is_finite = True
        if record.rows == 0 or not record.steps:
            return
        loss = self._mean.advance(record.mean_loss, record.rows)
        self._gauges["step_loss"] = loss
        if loss is not None:
            self._sums["loss_spikes_total"] += self._spikes.is_spike(loss)

    def _forget_loss(self) -> None:
        for name in ("loss", "step_loss", *_OF_LOSS):
            self._store.set(name, None)
            self._store.explain_absence(name, "the logs have no `loss`")

    def _take_change(self, change: PlanChange) -> None:
        self._know_plan_changes()
        event = change.event
        if event.old == event.new:
            # A decision to keep the plan.
            return
        self._last_reason = reason = kind_of(event)
        self._store.add("plan_changes_total", 1, reason=reason)
        if reason == "out_of_memory":
            self._store.add("oom_recoveries_total", 1)

    def _take_failure(self) -> None:
        if self._last_reason is not None:
            self._store.add(
                "plan_changes_failed_total", 1, reason=self._last_reason
            )

    def _know_plan_changes(self) -> None:
        self._store.add("oom_recoveries_total", 0)
        for reason in PLAN_REASONS:
            self._store.add("plan_changes_total", 0, reason=reason)
            self._store.add("plan_changes_failed_total", 0, reason=reason)
