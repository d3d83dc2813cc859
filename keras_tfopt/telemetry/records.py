"""What the training thread hands to the sampler: small, plain data."""

from collections.abc import Mapping
import dataclasses
from typing import Any
from typing import NamedTuple

from keras_tfopt.plan import ExecutionPlan
from keras_tfopt.plan import PlanEvent


class CallRecord(NamedTuple):
    """One call of the step function.

    Attributes:
        time: Float. When it ended, in seconds since the epoch of the clock.
        seconds: Float. What it took.
        loop_seconds: Float. Time since the call before, in the same epoch.
        steps: Integer. Updates made.
        rows: Integer or `None`. Rows trained on since rows were last told, 0
            where they are told later.
        wait_seconds: Float or `None`. Time of waiting for data.
        mean_loss: Float or `None`. As Keras reports it.
        is_first: Boolean. Whether it is the first call of an epoch.
        first_batch: Integer. First batch of the call, in the epoch.
        updates: Integer or `None`. Updates since training began, where the
            optimizer was asked.
        plan: `ExecutionPlan` of the last step, or `None`.
        batch_rows: Integer or `None`. Rows of one of its batches.
        hook_seconds: Float. What telemetry took on the training thread.
    """

    time: float
    seconds: float
    loop_seconds: float
    steps: int
    rows: int | None
    wait_seconds: float | None
    mean_loss: float | None
    is_first: bool
    first_batch: int
    updates: int | None
    plan: ExecutionPlan | None
    batch_rows: int | None
    hook_seconds: float


class EpochEnd(NamedTuple):
    """An epoch that ended.

    Attributes:
        time: Float. Seconds since the epoch of the clock.
        epoch: Integer.
        updates: Integer. Optimizer updates so far.
        logs: Dict of floats. As Keras reports them, with validation.
    """

    time: float
    epoch: int
    updates: int
    logs: Mapping[str, float]


class PlanChange(NamedTuple):
    """A plan event, with the time that it has not.

    Attributes:
        time: Float. Seconds since the epoch of the clock.
        event: `PlanEvent`.
    """

    time: float
    event: PlanEvent


class FailedRetry(NamedTuple):
    """A batch that failed again after the last change of plan.

    Attributes:
        attempts: Integer. Plans that failed on the batch.
    """

    attempts: int


class RefusedStep(NamedTuple):
    """A step that was left out since its loss or gradients are not sound.

    Attributes:
        is_finite: Boolean. Whether it was only a spike.
    """

    is_finite: bool


class Detail(NamedTuple):
    """A value with a name of its own, which is in no catalogue.

    Attributes:
        time: Float. Seconds since the epoch of the clock.
        updates: Integer. Optimizer updates so far.
        tag: String. Group and name.
        value: Float.
    """

    time: float
    updates: int
    tag: str
    value: float


class Image(NamedTuple):
    """Pictures to show.

    Attributes:
        time: Float. Seconds since the epoch of the clock.
        updates: Integer. Optimizer updates so far.
        tag: String. Group and name.
        pixels: Array of shape `(height, width, channels)`, or several of them.
    """

    time: float
    updates: int
    tag: str
    pixels: Any


@dataclasses.dataclass(frozen=True)
class Reading:
    """A value that a callback knows of a metric.

    A callback with a method `metric_readings`, which returns such values, is
    asked by the sampler every second, in its thread. Counters must not go back.

    Attributes:
        name: String. Name of the metric, without the prefix.
        value: Float, or `None` where it cannot be known.
        labels: Dict of strings.
    """

    name: str
    value: float | None
    labels: Mapping[str, str] = dataclasses.field(default_factory=dict)
