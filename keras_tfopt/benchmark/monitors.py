"""What monitors cost a step, against a `fit` without any."""

from collections.abc import Callable
import dataclasses
from itertools import pairwise
import statistics
import time
from typing import Any

import keras
import rich.console
import rich.table

from keras_tfopt import callbacks
from keras_tfopt.benchmark.networks import SMALL
from keras_tfopt.benchmark.networks import TINY
from keras_tfopt.benchmark.networks import Network
from keras_tfopt.turns import by_turns

AIM = 1.01

# Batches of an epoch.
_BATCHES = 64


@dataclasses.dataclass(frozen=True)
class MonitorCost:
    """What a monitor costs a step of one network.

    Other work on a machine only ever makes a step slower, so fast steps are
    compared: the tenth percentile of all of them. What a monitor does now and
    then is not in these, and stands beside them.

    Attributes:
        monitor: String. Its name, with what is set.
        network: String.
        plain: Float. Seconds of a fast step without it.
        watched: Float. Seconds of a fast step with it.
        beside: Float. Share of the time that it reads in a thread of its own.
    """

    monitor: str
    network: str
    plain: float
    watched: float
    beside: float

    @property
    def ratio(self) -> float:
        """How much longer a fast step takes."""
        return self.watched / self.plain


MONITORS: dict[str, Callable[[], keras.callbacks.Callback]] = {
    "MemoryWatchdog": callbacks.MemoryWatchdog,
    "MemoryWatchdog, 10 readings a second": lambda: callbacks.MemoryWatchdog(
        interval_seconds=0.1
    ),
    "LeakDetector": callbacks.LeakDetector,
}


class _Clock(keras.callbacks.Callback):
    """Notes when steps end.

    It stands behind the monitors, so that their hooks are within.
    """

    def __init__(self) -> None:
        super().__init__()
        self.ends: list[float] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Notes the time."""
        self.ends.append(time.perf_counter())

    @property
    def steps(self) -> list[float]:
        """Times of the steps, apart from the first."""
        return [after - before for before, after in pairwise(self.ends)]


def run_benchmark(
    console: rich.console.Console,
    networks: tuple[Network, ...] = (TINY, SMALL),
    monitors: dict[str, Callable] = MONITORS,
    rounds: int = 16,
    seconds: float = 2.0,
) -> list[MonitorCost]:
    """Measures monitors in turns with a `fit` without any, prints a table.

    Args:
        console: The `rich.console.Console` to print on.
        networks: Tuple of `Network`. Defaults to a tiny and a small perceptron:
            what a monitor costs does not depend on the step.
        monitors: Dict from names to callables that make a callback. Defaults
            to `MONITORS`.
        rounds: Integer. How often each is measured. Defaults to 16.
        seconds: Float. About how long each `fit` takes. Defaults to 2.

    Returns:
        List of `MonitorCost`.
    """
    costs = []
    for network in networks:
        costs += measure(network, monitors, rounds, seconds)
        keras.backend.clear_session()
    console.print(results_table(costs))
    return costs


def measure(
    network: Network,
    monitors: dict[str, Callable],
    rounds: int,
    seconds: float,
) -> list[MonitorCost]:
    """Measures monitors on one network.

    Args:
        network: `Network`.
        monitors: As for `run_benchmark`.
        rounds: As for `run_benchmark`.
        seconds: As for `run_benchmark`.
    """
    model = network.build(keras.Model)
    data = network.dataset(_BATCHES, network.batch_size)
    _time(model, data, 1, [])
    step = statistics.median(_time(model, data, 1, []))
    epochs = max(round(seconds / (_BATCHES * step)), 1)
    times: dict[str, list[float]] = {name: [] for name in ("", *monitors)}
    reading: dict[str, float] = dict.fromkeys(times, 0.0)
    for name in by_turns(list(times), rounds):
        added = [monitors[name]()] if name else []
        times[name] += _time(model, data, epochs, added)
        reading[name] += _seconds_of_readings(added)
    plain = _fast(times.pop(""))
    return [
        MonitorCost(
            name,
            network.name,
            plain,
            _fast(watched),
            reading[name] / sum(watched),
        )
        for name, watched in times.items()
    ]


def _fast(steps: list[float]) -> float:
    return statistics.quantiles(steps, n=10)[0]


def _seconds_of_readings(added: list[Any]) -> float:
    """Returns the time of all readings but the first and the last.

    These come with each `fit`, however short it is.
    """
    return sum(
        reading.seconds
        for monitor in added
        for reading in getattr(monitor, "readings", ())[1:-1]
    )


def results_table(costs: list[MonitorCost]) -> rich.table.Table:
    """Puts the costs of monitors in a table.

    Args:
        costs: List of `MonitorCost`.
    """
    table = rich.table.Table(title="What monitors cost a step")
    for heading in ("Monitor", "Network"):
        table.add_column(heading)
    for heading in ("Without", "With", "Ratio", "Aim", "Beside"):
        table.add_column(heading, justify="right")
    for cost in costs:
        table.add_row(
            cost.monitor,
            cost.network,
            f"{1000 * cost.plain:.2f} ms",
            f"{1000 * cost.watched:.2f} ms",
            f"{cost.ratio:.3f}",
            f"≤ {AIM:.2f}",
            f"{cost.beside:.2%}",
        )
    return table


def _time(
    model: keras.Model, data: Any, epochs: int, added: list[Any]
) -> list[float]:
    """Returns the times of the steps of a `fit`."""
    clock = _Clock()
    model.fit(
        data,
        epochs=epochs,
        verbose=0,
        shuffle=False,
        callbacks=[*added, clock],
    )
    return clock.steps


if __name__ == "__main__":
    run_benchmark(rich.console.Console())
