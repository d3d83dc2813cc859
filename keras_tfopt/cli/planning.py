"""Commands that find out how a model should train."""

import pathlib
from typing import Annotated

import rich.console
import typer

from keras_tfopt import trace_memory
from keras_tfopt.benchmark import fit_plan as planning
from keras_tfopt.benchmark.source import load_source
from keras_tfopt.cli.allocator import count_cpu_memory
from keras_tfopt.config import Optimization
from keras_tfopt.errors import OutOfMemoryError

Source = Annotated[
    str,
    typer.Argument(
        help="MLP, convnet, transformer, or module:function; the function "
        "returns a compiled model and a batch."
    ),
]


def fit_plan(
    source: Source,
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
    count_cpu_memory()
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


def trace(
    source: Source,
    rows: Annotated[int, typer.Option(min=1, help="Rows of the table.")] = 12,
) -> None:
    """Show what is alive at the peak of a step, by layer and tensor."""
    count_cpu_memory()
    console = rich.console.Console()
    try:
        traced = trace_memory(*load_source(source))
    except ValueError as error:
        console.print(str(error), markup=False, style="bold red")
        raise typer.Exit(2) from error
    console.print(traced.table(rows))


def tune(
    source: Source,
    configuration: Annotated[
        pathlib.Path | None,
        typer.Option(help="YAML file to start from."),
    ] = None,
    out: Annotated[
        pathlib.Path | None,
        typer.Option(help="YAML file to write what was chosen to."),
    ] = None,
    budget_seconds: Annotated[
        float, typer.Option(min=1, help="Time after which nothing new starts.")
    ] = 300.0,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON for scripts.")
    ] = False,
    svg: Annotated[
        pathlib.Path | None, typer.Option(help="File to save the picture in.")
    ] = None,
) -> None:
    """Measure one optimization after another, and keep what is better."""
    count_cpu_memory()
    console = rich.console.Console(record=svg is not None, stderr=as_json)
    try:
        run = (
            Optimization.from_dict({"tensorflow_optimization": {}})
            if configuration is None
            else Optimization.from_yaml(configuration)
        )
        model, batch = load_source(source)
        with console.status(f"measuring {source}"):
            report = run.tune(model, batch, budget_seconds=budget_seconds)
    except (ValueError, OSError) as error:
        console.print(str(error), markup=False, style="bold red")
        raise typer.Exit(2) from error
    console.print(report.table())
    if as_json:
        print(report.to_json())
    if svg is not None:
        console.save_svg(str(svg), title=f"keras-tfopt tune {source}")
    chosen = run.with_tuning(report).to_yaml()
    if out is not None:
        out.write_text(chosen, encoding="utf-8")
    elif not as_json:
        console.print(chosen, markup=False)
