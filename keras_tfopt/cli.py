"""The command line of keras_tfopt."""

import os
from typing import Annotated

import rich.console
import typer

from keras_tfopt._version import __version__
from keras_tfopt.benchmark import accumulation
from keras_tfopt.benchmark import demo as benchmark
from keras_tfopt.benchmark.digits import MissingExtraError

app = typer.Typer(
    add_completion=False,
    help="Tools around keras_tfopt.",
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,
)


def _print_version(is_asked: bool) -> None:
    """Prints the version and ends the program."""
    if is_asked:
        print(f"keras-tfopt {__version__}")
        raise typer.Exit()


@app.callback()
def _main(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_print_version,
            is_eager=True,
            help="Print the version and exit.",
        ),
    ] = False,
) -> None:
    """Tools around keras_tfopt."""


@app.command()
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

    Exits with status 1 if either reads fewer than 97 % of the test images.
    """
    # Gives CPUs the allocator of GPUs, which counts what it hands out.
    # TensorFlow reads this when it first uses a device, not on import.
    os.environ.setdefault("TF_CPU_ALLOCATOR_USE_BFC", "true")
    console = rich.console.Console()
    try:
        results = benchmark.run_demo(console, epochs=epochs, seed=seed)
    except MissingExtraError as error:
        console.print(str(error), markup=False)
        raise typer.Exit(2) from error
    failed = benchmark.failed_results(results)
    for result in failed:
        console.print(
            f"{result.name}: accuracy {result.accuracy:.2%}, "
            f"{benchmark.REQUIRED_ACCURACY:.0%} required",
            style="bold red",
        )
    if failed:
        raise typer.Exit(1)


@app.command()
def bench(
    rounds: Annotated[
        int, typer.Option(min=1, help="How often each training is timed.")
    ] = 9,
) -> None:
    """Measure what accumulation costs, against stock Keras."""
    os.environ.setdefault("TF_CPU_ALLOCATOR_USE_BFC", "true")
    accumulation.run_benchmark(rich.console.Console(), rounds)
