"""Commands that train, to show and to measure."""

import dataclasses
import pathlib
import tempfile
from typing import Annotated

import rich.console
import typer

from keras_tfopt.benchmark import accumulation
from keras_tfopt.benchmark import demo as benchmark
from keras_tfopt.benchmark import recovery
from keras_tfopt.benchmark import survival
from keras_tfopt.cli.allocator import count_cpu_memory
from keras_tfopt.errors import MissingExtraError


@dataclasses.dataclass(frozen=True)
class DemoSize:
    """How long the demo trains, and what it must reach.

    Attributes:
        epochs: Integer. Epochs on the digits.
        accuracy: Float. Share of the test images to read.
        text_epochs: Integer. Epochs on the sources.
        text_batches: Integer. Batches of each.
        tries_stock: Boolean. Whether stock Keras tries one of those.
    """

    epochs: int
    accuracy: float
    text_epochs: int
    text_batches: int
    tries_stock: bool


FULL = DemoSize(benchmark.EPOCHS, 0.97, 4, 60, True)
QUICK = DemoSize(5, 0.8, 2, 12, False)


def demo(
    quick: Annotated[
        bool,
        typer.Option(
            "--quick",
            help="Train for a minute only, and ask for less accuracy.",
        ),
    ] = False,
    seed: Annotated[
        int,
        typer.Option(min=0, help="Seed of weights, shuffling and test images."),
    ] = 0,
    out: Annotated[
        pathlib.Path | None,
        typer.Option(help="Folder for logs and backups. Default: a new one."),
    ] = None,
) -> None:
    """Train on handwritten digits, and a transformer that all happens to.

    The digits in stock Keras and in AccumModel, which needs less memory. Then a
    transformer on the characters of Python's own sources, undisturbed, and with
    too little memory, without a chance to be compiled, and killed on the way:
    it ends with the same weights, and shows itself to TensorBoard and
    Prometheus. Exits with status 1 if any of this is not so.
    """
    count_cpu_memory()
    console = rich.console.Console()
    size = QUICK if quick else FULL
    try:
        results = benchmark.run_demo(console, epochs=size.epochs, seed=seed)
    except MissingExtraError as error:
        console.print(str(error), markup=False)
        raise typer.Exit(2) from error
    problems = [
        f"{result.name}: accuracy {result.accuracy:.2%}, "
        f"{size.accuracy:.0%} required"
        for result in benchmark.failed_results(results, size.accuracy)
    ]
    if not problems:
        problems = _survive(console, size, seed, out)
    for problem in problems:
        console.print(problem, style="bold red")
    if problems:
        raise typer.Exit(1)


def _survive(
    console: rich.console.Console,
    size: DemoSize,
    seed: int,
    out: pathlib.Path | None,
) -> list[str]:
    """Runs the second part, and returns what it did not show."""
    parent = out or pathlib.Path(tempfile.gettempdir())
    parent.mkdir(parents=True, exist_ok=True)
    # Backups of another run would be gone on with.
    folder = pathlib.Path(tempfile.mkdtemp(prefix="demo-", dir=parent))
    found = survival.run_survival(
        console,
        folder,
        epochs=size.text_epochs,
        batches=size.text_batches,
        seed=seed,
        tries_stock=size.tries_stock,
    )
    console.print(survival.survival_table(found))
    console.print(survival.places(folder), markup=False, soft_wrap=True)
    return survival.problems_of(found)


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
