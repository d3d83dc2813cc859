"""What compiling costs a process that finds nothing compiled, and the next."""

import dataclasses
import sys
import tempfile

import rich.console
import rich.table

from keras_tfopt import AccumModel
from keras_tfopt import callbacks
from keras_tfopt.benchmark.networks import NETWORKS
from keras_tfopt.benchmark.networks import Network
from keras_tfopt.benchmark.processes import answer
from keras_tfopt.benchmark.processes import run_under_limit
from keras_tfopt.compilation import persist_compilations

_BATCHES = 4


@dataclasses.dataclass(frozen=True)
class CacheFigures:
    """What compiling a step took, with tracing.

    Attributes:
        network: String. Name of the network.
        cold_seconds: Float. In a process whose cache is empty.
        warm_seconds: Float. In the next one.
    """

    network: str
    cold_seconds: float
    warm_seconds: float


def measure_cache(network: Network) -> CacheFigures:
    """Compiles a network in two processes that share a cache.

    Args:
        network: One of `NETWORKS`.

    Returns:
        `CacheFigures`.
    """
    with tempfile.TemporaryDirectory() as directory:
        arguments = [network.name, directory]
        cold, warm = (
            run_under_limit(__spec__.name, arguments, None) for _ in range(2)
        )
    return CacheFigures(network.name, cold, warm)


def cache_table(figures: list[CacheFigures]) -> rich.table.Table:
    """Puts figures below each other.

    Args:
        figures: List of `CacheFigures`.

    Returns:
        A `rich.table.Table`.
    """
    table = rich.table.Table(title="Compiling, and the persistent cache")
    table.add_column("network", no_wrap=True)
    for heading in ("cold s", "warm s", "ratio"):
        table.add_column(heading, justify="right")
    for row in figures:
        table.add_row(
            row.network,
            f"{row.cold_seconds:.2f}",
            f"{row.warm_seconds:.2f}",
            f"{row.warm_seconds / row.cold_seconds:.2f}",
        )
    return table


def run_cache_benchmark(console: rich.console.Console) -> list[CacheFigures]:
    """Measures all networks and prints a table.

    Args:
        console: The `rich.console.Console` to print on.

    Returns:
        List of `CacheFigures`.
    """
    figures = []
    for network in NETWORKS:
        with console.status(f"compiling {network.name} in two processes"):
            figures.append(measure_cache(network))
    console.print(cache_table(figures))
    return figures


def _compile_seconds(network: Network) -> float:
    xla = callbacks.XLACompilation()
    network.build(AccumModel).fit(
        network.dataset(_BATCHES, network.batch_size),
        verbose=0,
        callbacks=[xla],
    )
    return xla.stats().compile_seconds


if __name__ == "__main__":
    name, directory = sys.argv[1:]
    persist_compilations(directory)
    (network,) = [one for one in NETWORKS if one.name == name]
    answer(_compile_seconds(network))
