"""What watching a training costs: everything on, against nothing.

`python -m keras_tfopt.benchmark.telemetry` prints one table.
"""

import dataclasses
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
from keras_tfopt.telemetry.session import session_of

AIM = 1.01
_STEPS = 400
_ROWS = 128
_WIDTH = 448


@dataclasses.dataclass(frozen=True)
class TelemetryFigures:
    """What was measured of one class of model.

    Attributes:
        name: String.
        plain_ms: Float. Median time of a step without callbacks of ours.
        watched_ms: Float. Median time of a step with all of them.
        hooks_us: Float. Time per step that telemetry itself counted on the
            training thread and in its own, spread over all steps.
    """

    name: str
    plain_ms: float
    watched_ms: float
    hooks_us: float

    @property
    def ratio(self) -> float:
        """Time with telemetry, relative to that without."""
        return self.watched_ms / self.plain_ms


class _StepClock(keras.callbacks.Callback):
    """Notes when each step begins."""

    def __init__(self) -> None:
        super().__init__()
        self.times: list[float] = []

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Notes the time."""
        self.times.append(time.perf_counter())

    @property
    def seconds(self) -> list[float]:
        """Time from each step to the next."""
        return [b - a for a, b in zip(self.times, self.times[1:], strict=False)]


def run_telemetry(
    console: rich.console.Console, rounds: int = 7, steps: int = _STEPS
) -> list[TelemetryFigures]:
    """Measures in turns and prints a table.

    Args:
        console: The `rich.console.Console` to print on.
        rounds: Integer. Trainings of each kind. Defaults to 7.
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
    """Puts figures below each other."""
    table = rich.table.Table(title="Everything on, against nothing")
    for heading in ("model", "off, ms", "on, ms", "ratio", "aim", "own, µs"):
        is_text = heading == "model"
        table.add_column(heading, justify="left" if is_text else "right")
    for figures in found:
        table.add_row(
            figures.name,
            f"{figures.plain_ms:.3f}",
            f"{figures.watched_ms:.3f}",
            f"{figures.ratio:.3f}",
            f"≤ {AIM}",
            f"{figures.hooks_us:.0f}",
        )
    return table


def _measure(cls: type, rounds: int, steps: int) -> TelemetryFigures:
    data = _data(steps)
    # Two models, so that neither has what the other's callbacks left.
    models = {"plain": _model(cls), "watched": _model(cls)}
    seconds: dict[str, list[float]] = {"plain": [], "watched": []}
    with tempfile.TemporaryDirectory() as directory:
        watching = _all_callbacks(directory)
        for number in range(rounds + 1):
            for name in list(seconds)[:: 1 if number % 2 else -1]:
                clock = _StepClock()
                extra = watching if name == "watched" else []
                models[name].fit(data, verbose=0, callbacks=[*extra, clock])
                if number:
                    # The first round traces.
                    seconds[name] += clock.seconds
        own = _own_seconds(models["watched"])
    medians = {n: 1e3 * statistics.median(s) for n, s in seconds.items()}
    return TelemetryFigures(
        cls.__name__,
        medians["plain"],
        medians["watched"],
        1e6 * own / (steps * (rounds + 1)),
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
    ]


def _own_seconds(model: keras.Model) -> float:
    latest = session_of(model).history.latest
    if latest is None:
        return 0.0
    return sum(latest.of("telemetry_overhead_seconds_total").values())


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
