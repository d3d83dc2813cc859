"""Commands that train, to show and to measure."""

from typing import Annotated

import rich.console
import typer

from keras_tfopt.benchmark import accumulation
from keras_tfopt.benchmark import demo as benchmark
from keras_tfopt.benchmark import limited
from keras_tfopt.benchmark import recovery
from keras_tfopt.cli.allocator import count_cpu_memory
from keras_tfopt.errors import MissingExtraError


def demo(
    epochs: Annotated[
        int, typer.Option(min=1, help="Epochs of each training.")
    ] = benchmark.EPOCHS,
    seed: Annotated[
        int,
        typer.Option(min=0, help="Seed of weights, shuffling and test images."),
    ] = 0,
) -> None:
    """Train on handwritten digits, stock Keras against AccumModel.

    First with enough memory, then with too little, where stock Keras ends and
    OOMRecovery goes on. Exits with status 1 if a training with enough memory
    reads fewer than 97 % of the test images, or if the others do not show this.
    """
    count_cpu_memory()
    console = rich.console.Console()
    try:
        results = benchmark.run_demo(console, epochs=epochs, seed=seed)
    except MissingExtraError as error:
        console.print(str(error), markup=False)
        raise typer.Exit(2) from error
    problems = [
        f"{result.name}: accuracy {result.accuracy:.2%}, "
        f"{benchmark.REQUIRED_ACCURACY:.0%} required"
        for result in benchmark.failed_results(results)
    ]
    if not problems:
        shown = limited.run_limited_demo(console, epochs=epochs, seed=seed)
        problems = limited.unexpected(shown)
    for problem in problems:
        console.print(problem, style="bold red")
    if problems:
        raise typer.Exit(1)


def bench(
    rounds: Annotated[
        int, typer.Option(min=1, help="How often each training is timed.")
    ] = 9,
) -> None:
    """Measure what accumulation and recovery cost, against stock Keras."""
    count_cpu_memory()
    console = rich.console.Console()
    accumulation.run_benchmark(console, rounds)
    recovery.run_recovery(console)
