"""The command line of keras_tfopt."""

import os
import pathlib
from typing import Annotated

import rich.console
import typer

from keras_tfopt._version import __version__
from keras_tfopt.benchmark import accumulation
from keras_tfopt.benchmark import demo as benchmark
from keras_tfopt.benchmark import fit_plan as planning
from keras_tfopt.benchmark import limited
from keras_tfopt.benchmark import recovery
from keras_tfopt.errors import MissingExtraError
from keras_tfopt.errors import OutOfMemoryError

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

    First with enough memory, then with too little, where stock Keras ends and
    OOMRecovery goes on. Exits with status 1 if a training with enough memory
    reads fewer than 97 % of the test images, or if the others do not show this.
    """
    _count_cpu_memory()
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


@app.command()
def bench(
    rounds: Annotated[
        int, typer.Option(min=1, help="How often each training is timed.")
    ] = 9,
) -> None:
    """Measure what accumulation and recovery cost, against stock Keras."""
    _count_cpu_memory()
    console = rich.console.Console()
    accumulation.run_benchmark(console, rounds)
    recovery.run_recovery(console)


@app.command()
def fit_plan(
    source: Annotated[
        str,
        typer.Argument(
            help="MLP, convnet, transformer, or module:function; the function "
            "returns a compiled model and a batch."
        ),
    ],
    limit_mib: Annotated[
        int | None,
        typer.Option(min=1, help="What a step may use. Default: the device's."),
    ] = None,
    max_utilization: Annotated[
        float, typer.Option(help="Share of the device's limit to use.")
    ] = 0.85,
    svg: Annotated[
        pathlib.Path | None, typer.Option(help="File to save the picture in.")
    ] = None,
) -> None:
    """Find the largest micro-batch that fits, and show what others need."""
    _count_cpu_memory()
    console = rich.console.Console(record=svg is not None)
    try:
        planning.run_fit_plan(
            console,
            source,
            max_utilization=max_utilization,
            limit_bytes=None if limit_mib is None else limit_mib * 2**20,
        )
    except (ValueError, OutOfMemoryError) as error:
        console.print(str(error), markup=False, style="bold red")
        raise typer.Exit(2) from error
    if svg is not None:
        console.save_svg(str(svg), title=f"keras-tfopt fit-plan {source}")


def _count_cpu_memory() -> None:
    """Gives CPUs the allocator of GPUs, which counts what it hands out.

    TensorFlow reads this when it first uses a device, not on import.
    """
    os.environ.setdefault("TF_CPU_ALLOCATOR_USE_BFC", "true")
