"""What XLA costs and gains, in its modes.

Run it with `python -m keras_tfopt.benchmark.compilation`; `--rounds=1` is for a
first look.
"""

import argparse
import dataclasses
import functools
import os

import keras
import rich.console
import rich.table

from keras_tfopt import AccumModel
from keras_tfopt import callbacks
from keras_tfopt.benchmark.compilation_cache import run_cache_benchmark
from keras_tfopt.benchmark.measuring import alternate
from keras_tfopt.benchmark.measuring import peak_bytes
from keras_tfopt.benchmark.networks import NETWORKS
from keras_tfopt.benchmark.networks import Network
from keras_tfopt.compilation import allow_clustering_on_cpu
from keras_tfopt.memory.limit import default_device

MODES = ("off", "on", "auto", "auto_clustering")
_BATCHES = 4
_TRIAL_STEPS = 5
# More often than a trial goes on.
_MOST_FITS = 20
_MIB = 2**20


@dataclasses.dataclass(frozen=True)
class ModeFigures:
    """What a mode of XLA costs on a network.

    Attributes:
        network: String. Name of the network.
        mode: String. One of `MODES`.
        milliseconds: Float. Median time of a step.
        peak_bytes: Integer or `None`. What training needs at most on top of
            parameters, optimizer slots and data.
        compile_seconds: Float. What compiling took, with tracing.
        compiled: String. How much ran compiled in the end: `"whole"`, `"none"`
            or `"parts"`.
    """

    network: str
    mode: str
    milliseconds: float
    peak_bytes: int | None
    compile_seconds: float
    compiled: str


def run_benchmark(
    console: rich.console.Console, rounds: int = 5
) -> list[ModeFigures]:
    """Measures all modes on all networks and prints a table.

    Args:
        console: The `rich.console.Console` to print on.
        rounds: Integer. How often each training is timed. Defaults to 5.

    Returns:
        List of `ModeFigures`.
    """
    figures = []
    for network in NETWORKS:
        with console.status(f"measuring {network.name}"):
            figures += measure_modes(network, rounds)
        keras.backend.clear_session()
    console.print(figures_table(figures))
    return figures


def measure_modes(
    network: Network, rounds: int, modes: tuple[str, ...] = MODES
) -> list[ModeFigures]:
    """Times the modes by turns, after trials and compilations.

    Args:
        network: `Network`.
        rounds: Integer. How often each training is timed.
        modes: Tuple of modes. Defaults to all.

    Returns:
        List of `ModeFigures`.
    """
    data = network.dataset(_BATCHES, network.batch_size)
    used, functions = {}, {}
    for mode in modes:
        used[mode] = callbacks.XLACompilation(mode, trial_steps=_TRIAL_STEPS)
        functions[mode] = functools.partial(
            network.build(AccumModel).fit,
            data,
            verbose=0,
            shuffle=False,
            callbacks=[used[mode]],
        )
        functions[mode](epochs=2)
        for _ in range(_MOST_FITS):
            if mode != "auto" or used[mode].plan_events:
                break
            # Until the trial is over.
            functions[mode]()
    seconds = alternate(functions, rounds)
    return [
        ModeFigures(
            network.name,
            mode,
            1000 * seconds[mode] / _BATCHES,
            peak_bytes(functions[mode], default_device()),
            xla.stats().compile_seconds,
            _compiled(xla, functions[mode]),
        )
        for mode, xla in used.items()
    ]


def figures_table(figures: list[ModeFigures]) -> rich.table.Table:
    """Puts figures below each other.

    Args:
        figures: List of `ModeFigures`, with `"off"` or `"on"` of each network
            among them.

    Returns:
        A `rich.table.Table`.
    """
    table = rich.table.Table(
        caption="ratio: time of a step, to that of the better of off and on"
    )
    for heading in ("network", "mode"):
        table.add_column(heading, no_wrap=True)
    for heading in ("ms per step", "steps/s", "ratio", "peak MiB", "compile s"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("compiled", no_wrap=True)
    best: dict[str, float] = {}
    for row in figures:
        if row.mode in ("off", "on"):
            known = best.get(row.network, row.milliseconds)
            best[row.network] = min(known, row.milliseconds)
    for row in figures:
        peak = row.peak_bytes
        table.add_row(
            row.network,
            row.mode,
            f"{row.milliseconds:.2f}",
            f"{1000 / row.milliseconds:.1f}",
            f"{row.milliseconds / best[row.network]:.3f}",
            "-" if peak is None else f"{peak / _MIB:.2f}",
            f"{row.compile_seconds:.2f}",
            row.compiled,
        )
    return table


def _compiled(xla: callbacks.XLACompilation, train: functools.partial) -> str:
    if xla.settings.mode == "auto_clustering":
        return "parts"
    before = xla.stats().compiled_steps
    train()
    return "whole" if xla.stats().compiled_steps > before else "none"


def main() -> None:
    """Measures the modes, and the cache in processes of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    # Also where the output goes to a file.
    console = rich.console.Console(width=100)
    run_cache_benchmark(console)
    # Gives CPUs the allocator of GPUs, which counts what it hands out.
    os.environ.setdefault("TF_CPU_ALLOCATOR_USE_BFC", "true")
    allow_clustering_on_cpu()
    run_benchmark(console, rounds)


if __name__ == "__main__":
    main()
