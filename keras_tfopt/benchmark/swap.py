"""What it costs to look at memory, to move it together, and to swap it.

Run it with `python -m keras_tfopt.benchmark.swap`.
"""

import dataclasses
import statistics
import sys
import tempfile
import time
from typing import Any

import keras
import rich.console
import rich.table
import tensorflow as tf

from keras_tfopt.benchmark.networks import NETWORKS
from keras_tfopt.benchmark.networks import Network
from keras_tfopt.benchmark.processes import answer
from keras_tfopt.benchmark.processes import run_under_limit
from keras_tfopt.memory import ProfilerWindow
from keras_tfopt.memory import SwapManager
from keras_tfopt.memory import compact
from keras_tfopt.memory.fragmentation import parse_probe
from keras_tfopt.memory.fragmentation import probe
from keras_tfopt.memory.limit import default_device
from keras_tfopt.memory.limit import limit_gpus

# `__name__` is another one where this file runs as a program.
_MODULE = "keras_tfopt.benchmark.swap"
_LIMIT_MIB = 1500
# Variables of 16 MiB.
_SHAPE = (2048, 2048)
_VARIABLES = 16
_ROUNDS = 5
_MIB = 2**20


@dataclasses.dataclass(frozen=True)
class MemoryCosts:
    """One row of the table.

    Attributes:
        measured: String. What was measured.
        value: Float. Median.
        unit: String.
    """

    measured: str
    value: float
    unit: str


def run_benchmark(console: rich.console.Console) -> list[MemoryCosts]:
    """Measures in a process of its own and prints a table.

    Args:
        console: The `rich.console.Console` to print on.

    Returns:
        List of `MemoryCosts`.
    """
    with console.status("measuring windows, compaction and swapping"):
        found = run_under_limit(_MODULE, ["measure"], _LIMIT_MIB)
    costs = [MemoryCosts(**row) for row in found]
    console.print(costs_table(costs))
    return costs


def costs_table(costs: list[MemoryCosts]) -> rich.table.Table:
    """Puts costs below each other.

    Args:
        costs: List of `MemoryCosts`.

    Returns:
        A `rich.table.Table`.
    """
    table = rich.table.Table(title="Memory, looked at and moved")
    table.add_column("measured")
    table.add_column("median", justify="right")
    table.add_column("")
    for cost in costs:
        table.add_row(cost.measured, f"{cost.value:.2f}", cost.unit)
    return table


def measure_reading() -> list[MemoryCosts]:
    """Times a reading of the fragmentation, as the monitor takes it."""
    device = default_device()
    windows, parses = [], []
    for _ in range(10 * _ROUNDS):
        start = time.perf_counter()
        window = probe(device)
        middle = time.perf_counter()
        parse_probe(window, device)
        windows.append(middle - start)
        parses.append(time.perf_counter() - middle)
    return [
        MemoryCosts("fragmentation: between two steps", _ms(windows), "ms"),
        MemoryCosts("fragmentation: on another thread", _ms(parses), "ms"),
    ]


def measure_window(network: Network) -> list[MemoryCosts]:
    """Times a window around a training step.

    Args:
        network: `Network`.
    """
    model = network.build(keras.Model)
    batch = network.data(1)
    model.train_on_batch(*batch)
    plain, inside, closing, parsing, count = [], [], [], [], 0
    for _ in range(_ROUNDS):
        start = time.perf_counter()
        model.train_on_batch(*batch)
        plain.append(time.perf_counter() - start)
        with ProfilerWindow() as window:
            start = time.perf_counter()
            model.train_on_batch(*batch)
            end = time.perf_counter()
        closed = time.perf_counter()
        count = len(window.events())
        inside.append(end - start)
        closing.append(closed - end)
        parsing.append(time.perf_counter() - closed)
    name = network.name
    return [
        MemoryCosts(f"{name}: step", _ms(plain), "ms"),
        MemoryCosts(f"{name}: step in a window", _ms(inside), "ms"),
        MemoryCosts(f"{name}: closing it", _ms(closing), "ms"),
        MemoryCosts(f"{name}: parsing {count} events", _ms(parsing), "ms"),
    ]


def measure_compaction() -> list[MemoryCosts]:
    """Times compaction of variables with holes between them."""
    seconds = []
    for _ in range(_ROUNDS):
        variables, holes = [], []
        for _ in range(_VARIABLES):
            variables.append(tf.Variable(tf.zeros(_SHAPE)))
            holes.append(tf.zeros(_SHAPE))
        # Nothing else must hold what lies between the variables.
        holes.clear()
        found = compact(variables, default_device())
        seconds.append(found.seconds * 2**30 / found.moved_bytes)
    return [
        MemoryCosts("compaction", statistics.median(seconds), "s/GiB"),
    ]


def measure_swapping(tier: str, directory: str | None) -> list[MemoryCosts]:
    """Times a group that leaves and comes back.

    Args:
        tier: `"host"` or `"disk"`.
        directory: String or `None`. As for `SwapManager`.
    """
    # So much that nothing leaves by itself.
    swap = SwapManager(2**40, tier=tier, directory=directory)
    swap.add("group", [tf.Variable(tf.ones(_SHAPE)) for _ in range(_VARIABLES)])
    for _ in range(_ROUNDS):
        swap.evict("group")
        swap.fetch("group")
    return [
        MemoryCosts(
            f"swap to {tier}, {direction}",
            swap.counters.seconds_per_gib(direction) or 0.0,
            "s/GiB",
        )
        for direction in ("out", "in")
    ]


def _ms(seconds: list[float]) -> float:
    return statistics.median(seconds) * 1e3


def _measure() -> list[dict[str, Any]]:
    limit_gpus(_LIMIT_MIB * _MIB)
    costs = measure_reading()
    for network in NETWORKS[:2]:
        costs += measure_window(network)
    costs += measure_compaction()
    costs += measure_swapping("host", None)
    with tempfile.TemporaryDirectory() as directory:
        costs += measure_swapping("disk", directory)
    return [dataclasses.asdict(cost) for cost in costs]


if __name__ == "__main__":
    if sys.argv[1:] == ["measure"]:
        answer(_measure())
    else:
        run_benchmark(rich.console.Console())
