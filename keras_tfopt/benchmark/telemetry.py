"""What watching a training costs: everything on, against nothing.

`python -m keras_tfopt.benchmark.telemetry` prints one table after some three
minutes. Processor time still means something on a machine that is busy with
other work, wall time does not.
"""

import dataclasses
import math
import os
import statistics
import tempfile
import time
from typing import Any

import keras
import rich.console
import rich.table
import tensorflow as tf

from keras_tfopt import AccumModel
from keras_tfopt import callbacks
from keras_tfopt.telemetry.callback import TelemetryCallback
from keras_tfopt.telemetry.records import CallRecord

AIM = 1.01
_ROWS = 128
_WIDTH = 448


@dataclasses.dataclass(frozen=True)
class StepCost:
    """Means over the steps of a training.

    Attributes:
        wall_ms: Float. Time per step.
        processor_ms: Float. Time of all processors per step, which what else
            runs on the machine disturbs less.
    """

    wall_ms: float
    processor_ms: float


@dataclasses.dataclass(frozen=True)
class TelemetryFigures:
    """What was measured of one class of model.

    Attributes:
        name: String.
        plain: `StepCost` without callbacks of ours, medians.
        watched: `StepCost` with all of them, medians.
        wall: `Comparison` of wall times.
        processor: `Comparison` of processor times.
        own_us: Float. Time that telemetry counted of itself on the thread of
            training, in the median step.
    """

    name: str
    plain: StepCost
    watched: StepCost
    wall: "Comparison"
    processor: "Comparison"
    own_us: float


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Trainings with callbacks against those around them without.

    Attributes:
        ratio: Float. Median of the ratios.
        noise: Float. Standard error of such a median, from how trainings
            without callbacks differ among each other.
    """

    ratio: float
    noise: float


class _StepClock(keras.callbacks.Callback):
    """Takes the times of the steps, but for the first ones.

    Args:
        steps: Integer. Steps of the training.
    """

    _SKIPPED = 2

    def __init__(self, steps: int) -> None:
        super().__init__()
        self._steps = steps
        self._start = (0.0, 0.0)
        self.cost = StepCost(0.0, 0.0)

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Notes the times of the first and the last step."""
        now = time.perf_counter(), time.process_time()
        if batch == self._SKIPPED:
            self._start = now
        if batch == self._steps - 1:
            count = batch - self._SKIPPED
            wall, processor = (
                1e3 * (end - start) / count
                for start, end in zip(self._start, now, strict=True)
            )
            self.cost = StepCost(wall, processor)


class _HookTimes(TelemetryCallback):
    """Keeps what telemetry tells of its own time in each step."""

    def __init__(self) -> None:
        super().__init__(interval_seconds=60.0)
        self.seconds: list[float] = []

    def handle(self, records: list[Any]) -> None:
        """Takes the times out of the records."""
        self.seconds += [
            record.hook_seconds
            for record in records
            if isinstance(record, CallRecord)
        ]


def run_telemetry(
    console: rich.console.Console, rounds: int = 12, steps: int = 400
) -> list[TelemetryFigures]:
    """Measures in turns and prints a table.

    Args:
        console: The `rich.console.Console` to print on.
        rounds: Integer. Trainings with all callbacks; there are twice as many
            without. Defaults to 12.
        steps: Integer. Steps of each. Defaults to 400.

    Returns:
        List of `TelemetryFigures`.
    """
    found = []
    for cls in (AccumModel, keras.Model):
        with console.status(f"measuring {cls.__name__}"):
            found.append(_measure(cls, rounds, steps))
    console.print(figures_table(found))
    return found


def figures_table(found: list[TelemetryFigures]) -> rich.table.Table:
    """Puts figures below each other.

    Args:
        found: List of `TelemetryFigures`.

    Returns:
        A `rich.table.Table`.
    """
    table = rich.table.Table(title="Steps with all telemetry, and without")
    for heading in (
        "model", "time", "off, ms", "on, ms", "ratio", "noise", "aim",
        "own, µs",
    ):  # fmt: skip
        is_text = heading in ("model", "time")
        table.add_column(heading, justify="left" if is_text else "right")
    for figures in found:
        for kind, plain, watched, comparison in (
            (
                "wall",
                figures.plain.wall_ms,
                figures.watched.wall_ms,
                figures.wall,
            ),
            (
                "processor",
                figures.plain.processor_ms,
                figures.watched.processor_ms,
                figures.processor,
            ),
        ):
            table.add_row(
                figures.name,
                kind,
                f"{plain:.3f}",
                f"{watched:.3f}",
                f"{comparison.ratio:.3f}",
                f"± {comparison.noise:.3f}",
                f"≤ {AIM}",
                f"{figures.own_us:.0f}",
            )
    return table


def compare(
    before: list[float], watched: list[float], after: list[float]
) -> Comparison:
    """Compares trainings with callbacks with those before and after them.

    Args:
        before: List of times, one for each round.
        watched: List of times, with callbacks.
        after: List of times.
    """
    rounds = list(zip(before, watched, after, strict=True))
    ratios = [b / a for a, _, b in rounds]
    middle = statistics.median(ratios)
    deviation = statistics.median(abs(ratio - middle) for ratio in ratios)
    return Comparison(
        statistics.median(2 * on / (a + b) for a, on, b in rounds),
        # Of the median of a normal distribution, whatever the outliers.
        1.25 * 1.48 * deviation / math.sqrt(len(rounds)),
    )


def _measure(cls: type, rounds: int, steps: int) -> TelemetryFigures:
    data = _data(steps)
    model = _model(cls)
    before, on, after = [], [], []
    with tempfile.TemporaryDirectory() as directory:
        hooks = _HookTimes()
        watching = [*_all_callbacks(directory), hooks]
        # The first ones trace.
        for added in (watching, []):
            _train(model, data, steps, added)
        for _ in range(rounds):
            # What drifts is the same on both sides.
            before.append(_train(model, data, steps, []))
            on.append(_train(model, data, steps, watching))
            after.append(_train(model, data, steps, []))

    def compared(kind: str) -> Comparison:
        return compare(
            *(
                [getattr(cost, kind) for cost in costs]
                for costs in (before, on, after)
            )
        )

    return TelemetryFigures(
        cls.__name__,
        _median([*before, *after]),
        _median(on),
        compared("wall_ms"),
        compared("processor_ms"),
        1e6 * statistics.median(hooks.seconds),
    )


def _train(
    model: keras.Model, data: Any, steps: int, added: list[Any]
) -> StepCost:
    clock = _StepClock(steps)
    model.fit(data, verbose=0, shuffle=False, callbacks=[*added, clock])
    return clock.cost


def _median(costs: list[StepCost]) -> StepCost:
    return StepCost(
        statistics.median(cost.wall_ms for cost in costs),
        statistics.median(cost.processor_ms for cost in costs),
    )


def _all_callbacks(directory: str) -> list[keras.callbacks.Callback]:
    return [
        callbacks.PrometheusExporter(
            port=0, textfile=os.path.join(directory, "a.prom")
        ),
        callbacks.TensorBoardDashboard(directory),
        callbacks.AlertNotifier(),
        callbacks.JSONLinesLogger(os.path.join(directory, "a.jsonl")),
        callbacks.GradientMonitor(),
        callbacks.InputPipelineMonitor(),
        callbacks.DistributionMonitor(),
        callbacks.TrainingSummary(),
        callbacks.ConsoleLogger(),
    ]


def _data(steps: int) -> tf.data.Dataset:
    x = tf.random.normal((_ROWS, _WIDTH))
    y = tf.random.normal((_ROWS, 1))
    return tf.data.Dataset.from_tensors((x, y)).repeat(steps)


def _model(cls: type) -> keras.Model:
    inputs = keras.Input((_WIDTH,))
    hidden = inputs
    for _ in range(3):
        hidden = keras.layers.Dense(_WIDTH, activation="relu")(hidden)
    model = cls(inputs, keras.layers.Dense(1)(hidden))
    model.compile("adam", "mse")
    return model


if __name__ == "__main__":
    run_telemetry(rich.console.Console())
