"""What monitors cost a step, against a `fit` without any."""

from collections.abc import Callable
import dataclasses
import statistics
import time
from typing import Any

import keras
import rich.console
import rich.table

from keras_tfopt import callbacks
from keras_tfopt.benchmark.networks import NETWORKS
from keras_tfopt.benchmark.networks import SMALL
from keras_tfopt.benchmark.networks import Network

AIM = 1.01


@dataclasses.dataclass(frozen=True)
class MonitorCost:
    """What a monitor costs a step of one network.

    Attributes:
        monitor: String. Its name, with what is set.
        network: String.
        plain: Float. Median seconds of a step without it.
        watched: Float. Median seconds of a step with it.
        ratio: Float. Median of the ratios of rounds that ran side by side.
    """

    monitor: str
    network: str
    plain: float
    watched: float
    ratio: float


MONITORS: dict[str, Callable[[], keras.callbacks.Callback]] = {
    "MemoryWatchdog": callbacks.MemoryWatchdog,
    "MemoryWatchdog, 10 readings a second": lambda: callbacks.MemoryWatchdog(
        interval_seconds=0.1
    ),
    "LeakDetector": callbacks.LeakDetector,
}


class _Clock(keras.callbacks.Callback):
    """Notes when a `fit` begins its first step and ends its last epoch.

    It stands behind the monitors, so that their hooks are within.
    """

    def __init__(self) -> None:
        super().__init__()
        self.first: float | None = None
        self.last = 0.0
        self.steps = 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Starts to count after the first step."""
        self.last = time.perf_counter()
        if self.first is None:
            self.first = self.last
        else:
            self.steps += 1

    @property
    def seconds(self) -> float:
        """Mean time of a step, what happens around it included."""
        return (self.last - (self.first or 0.0)) / self.steps


def run_benchmark(
    console: rich.console.Console,
    networks: tuple[Network, ...] = (SMALL, *NETWORKS[1:]),
    monitors: dict[str, Callable] = MONITORS,
    rounds: int = 9,
    seconds: float = 3.0,
) -> list[MonitorCost]:
    """Measures monitors in turns with a `fit` without any, prints a table.

    Args:
        console: The `rich.console.Console` to print on.
        networks: Tuple of `Network`. Defaults to a small perceptron, a convnet
            and a transformer.
        monitors: Dict from names to callables that make a callback. Defaults
            to `MONITORS`.
        rounds: Integer. How often each is measured. Defaults to 9.
        seconds: Float. About how long each `fit` takes. Defaults to 3.

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
    data = network.dataset(8, network.batch_size)
    _time(model, data, 1, [])
    step = _time(model, data, 1, [])
    epochs = max(round(seconds / (8 * step)), 1)
    times: dict[str, list[float]] = {name: [] for name in ("", *monitors)}
    for index in range(rounds):
        # In both orders, so that none always follows the same.
        for name in list(times)[:: 1 if index % 2 else -1]:
            added = [monitors[name]()] if name else []
            times[name].append(_time(model, data, epochs, added))
    plain = times.pop("")
    return [
        MonitorCost(
            name,
            network.name,
            statistics.median(plain),
            statistics.median(watched),
            statistics.median(
                after / before
                for after, before in zip(watched, plain, strict=True)
            ),
        )
        for name, watched in times.items()
    ]


def results_table(costs: list[MonitorCost]) -> rich.table.Table:
    """Puts the costs of monitors in a table.

    Args:
        costs: List of `MonitorCost`.
    """
    table = rich.table.Table(title="What monitors cost a step")
    for heading in ("Monitor", "Network"):
        table.add_column(heading)
    for heading in ("Without", "With", "Ratio", "Aim"):
        table.add_column(heading, justify="right")
    for cost in costs:
        table.add_row(
            cost.monitor,
            cost.network,
            f"{1000 * cost.plain:.2f} ms",
            f"{1000 * cost.watched:.2f} ms",
            f"{cost.ratio:.3f}",
            f"≤ {AIM:.2f}",
        )
    return table


def _time(
    model: keras.Model, data: Any, epochs: int, added: list[Any]
) -> float:
    clock = _Clock()
    model.fit(
        data,
        epochs=epochs,
        verbose=0,
        shuffle=False,
        callbacks=[*added, clock],
    )
    return clock.seconds


if __name__ == "__main__":
    run_benchmark(rich.console.Console())
