"""What accumulation costs, against stock Keras."""

from collections.abc import Callable
import dataclasses
import functools
from typing import Any

import keras
import rich.console
import rich.table
import tensorflow as tf

from keras_tfopt import AccumModel
from keras_tfopt import callbacks
from keras_tfopt.benchmark.measuring import alternate
from keras_tfopt.benchmark.measuring import peak_bytes
from keras_tfopt.benchmark.networks import LITTLE
from keras_tfopt.benchmark.networks import NETWORKS
from keras_tfopt.benchmark.networks import SMALL
from keras_tfopt.benchmark.networks import TINY
from keras_tfopt.benchmark.networks import Network
from keras_tfopt.memory.limit import default_device

MICROBATCHES = 8


@dataclasses.dataclass(frozen=True)
class Comparison:
    """A figure of ours against one of stock Keras.

    Attributes:
        name: String. What is compared.
        network: String. Name of the network.
        stock: Float. Stock Keras' figure.
        ours: Float. Ours.
        unit: String.
        limit: Float. Largest ratio that is aimed at.
    """

    name: str
    network: str
    stock: float
    ours: float
    unit: str
    limit: float

    @property
    def ratio(self) -> float:
        """Our figure as a multiple of stock Keras'."""
        return self.ours / self.stock


def run_benchmark(
    console: rich.console.Console, rounds: int = 9
) -> list[Comparison]:
    """Measures accumulation on all networks and prints a table.

    Args:
        console: The `rich.console.Console` to print on.
        rounds: Integer. How often each training is timed. Defaults to 9.

    Returns:
        List of `Comparison`.
    """
    results = []
    measures: list[tuple[Callable[..., Comparison | None], Any]] = [
        (measure, network)
        for network in NETWORKS
        for measure in (idle_cost, accumulation_cost, accumulation_peak)
    ]
    measures += [
        (idle_cost, TINY),
        (many_steps_cost, LITTLE),
        (guard_cost, SMALL),
    ]
    with console.status("measuring") as status:
        for measure, network in measures:
            status.update(f"measuring {network.name}, {measure.__name__}")
            result = measure(network, rounds)
            if result is not None:
                results.append(result)
            keras.backend.clear_session()
    console.print(results_table(results))
    return results


def idle_cost(network: Network, rounds: int, **compile_with: Any) -> Comparison:
    """Times a step without splitting."""
    batches = 200 if network in (TINY, LITTLE) else 4
    data = network.dataset(batches, network.batch_size)
    seconds = _times(
        {
            "stock": network.build(keras.Model, **compile_with),
            "ours": network.build(AccumModel, **compile_with),
        },
        {"stock": data, "ours": data},
        batches,
        rounds,
    )
    return Comparison("step, not split", network.name, *seconds, "ms", 1.02)


def many_steps_cost(network: Network, rounds: int) -> Comparison:
    """Times a step where several are run in one call."""
    result = idle_cost(network, rounds, steps_per_execution=8)
    return dataclasses.replace(result, name="step of 8 in a call", limit=1.05)


def guard_cost(network: Network, rounds: int) -> Comparison:
    """Times a step of a plain model that `OOMRecovery` watches."""
    batches = 50
    data = network.dataset(batches, network.batch_size)
    models = {name: network.build(keras.Model) for name in ("stock", "ours")}
    fit = {
        "stock": functools.partial(models["stock"].fit, data, verbose=0),
        "ours": functools.partial(
            models["ours"].fit,
            data,
            verbose=0,
            callbacks=[callbacks.OOMRecovery()],
        ),
    }
    scale = 1000 / batches
    seconds = alternate(fit, rounds)
    return Comparison(
        "step under OOMRecovery",
        network.name,
        seconds["stock"] * scale,
        seconds["ours"] * scale,
        "ms",
        1.01,
    )


def accumulation_cost(network: Network, rounds: int) -> Comparison:
    """Times an update, against Keras' own accumulation."""
    microbatch_size = network.batch_size // MICROBATCHES
    optimizer = keras.optimizers.Adam(
        1e-3, gradient_accumulation_steps=MICROBATCHES
    )
    batches = 3
    seconds = _times(
        {
            "stock": network.build(keras.Model, optimizer),
            "ours": network.build(_split(network)),
        },
        {
            "stock": network.dataset(batches, microbatch_size),
            "ours": network.dataset(batches, network.batch_size),
        },
        batches,
        rounds,
    )
    return Comparison(
        f"update of {MICROBATCHES} micro-batches",
        network.name,
        *seconds,
        "ms",
        1.0,
    )


def accumulation_peak(network: Network, rounds: int) -> Comparison | None:
    """Measures the peak of an update, against one micro-batch alone."""
    del rounds
    device = default_device()
    x, y = network.data(1)
    microbatch_size = network.batch_size // MICROBATCHES

    def step(model: keras.Model, rows: int) -> Callable[[], None]:
        batch = tf.constant(x[:rows]), tf.constant(y[:rows])
        model.make_train_function()
        return lambda: model.train_function(iter([batch]))

    stock = network.build(keras.Model)
    alone = peak_bytes(step(stock, microbatch_size), device)
    split = network.build(_split(network))
    whole = peak_bytes(step(split, network.batch_size), device)
    if alone is None or whole is None:
        return None
    return Comparison(
        f"peak of {MICROBATCHES} micro-batches",
        network.name,
        alone / 2**20,
        whole / 2**20,
        "MiB",
        1.25,
    )


def results_table(results: list[Comparison]) -> rich.table.Table:
    """Puts comparisons below each other.

    Args:
        results: List of `Comparison`.

    Returns:
        A `rich.table.Table`.
    """
    table = rich.table.Table(
        caption=(
            "Stock Keras: the same step; for an update, its own "
            "gradient_accumulation_steps; for a peak, one micro-batch alone."
        )
    )
    table.add_column("measured")
    table.add_column("network")
    for heading in ("stock Keras", "ours", "ratio", "aim"):
        table.add_column(heading, justify="right")
    table.add_column("unit")
    for result in results:
        is_met = result.ratio <= result.limit
        table.add_row(
            result.name,
            result.network,
            f"{result.stock:.2f}",
            f"{result.ours:.2f}",
            f"{result.ratio:.2f}",
            f"≤ {result.limit:.2f}",
            result.unit,
            style=None if is_met else "bold",
        )
    return table


def _split(network: Network) -> Callable[..., keras.Model]:
    return functools.partial(
        AccumModel, microbatch_size=network.batch_size // MICROBATCHES
    )


def _times(
    models: dict[str, keras.Model],
    data: dict[str, tf.data.Dataset],
    batches: int,
    rounds: int,
) -> tuple[float, float]:
    """Returns milliseconds per effective batch of stock Keras and ours."""
    functions = {
        name: functools.partial(model.fit, data[name], verbose=0, shuffle=False)
        for name, model in models.items()
    }
    seconds = alternate(functions, rounds)
    scale = 1000 / batches
    return seconds["stock"] * scale, seconds["ours"] * scale
