"""The command line of keras_tfopt."""

import dataclasses
import functools
import json
import os
import pathlib
import sys
from typing import Annotated

import rich.console
import typer

from keras_tfopt import launcher
from keras_tfopt._version import __version__
from keras_tfopt.benchmark import accumulation
from keras_tfopt.benchmark import demo as benchmark
from keras_tfopt.benchmark import fit_plan as planning
from keras_tfopt.benchmark import limited
from keras_tfopt.benchmark import recovery
from keras_tfopt.benchmark.source import load_source
from keras_tfopt.config import ConfigurationError
from keras_tfopt.config import Optimization
from keras_tfopt.doctor import examination
from keras_tfopt.errors import MissingExtraError
from keras_tfopt.errors import OutOfMemoryError
from keras_tfopt.telemetry.dashboards import write_dashboards

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
def doctor(
    path: Annotated[
        pathlib.Path,
        typer.Option(help="Folder for backups and logs."),
    ] = pathlib.Path("."),
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON for scripts.")
    ] = False,
) -> None:
    """Look at versions, devices, flags and disk, and say what to do.

    Exits with status 1 if something keeps training from running.
    """
    findings = examination.examine(path)
    if as_json:
        print(json.dumps([dataclasses.asdict(found) for found in findings]))
    else:
        rich.console.Console().print(examination.findings_table(findings))
    if any(finding.severity == "error" for finding in findings):
        raise typer.Exit(1)


@app.command()
def explain(
    file: Annotated[pathlib.Path, typer.Argument(help="The YAML file.")],
) -> None:
    """Check a configuration, and tell what it will do here, and what not."""
    try:
        print(Optimization.from_yaml(file).explain())
    except (ConfigurationError, OSError) as error:
        print(error)
        raise typer.Exit(2) from error


@app.command()
def schema() -> None:
    """Print the JSON Schema of a configuration, for editors."""
    print(json.dumps(Optimization.json_schema(), indent=2))


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


@app.command()
def launch(
    command: Annotated[
        list[str],
        typer.Argument(help="After --: program and arguments of each worker."),
    ],
    workers: Annotated[
        int, typer.Option(min=1, help="Workers on this host.")
    ] = 1,
    max_restarts: Annotated[
        int, typer.Option(min=0, help="How often the group starts again.")
    ] = 0,
    grace_seconds: Annotated[
        float,
        typer.Option(min=0, help="Time to end in after a worker failed."),
    ] = 30.0,
    hosts: Annotated[
        str | None,
        typer.Option(help="All hosts, separated by commas. Default: this one."),
    ] = None,
    rank: Annotated[
        int, typer.Option(min=0, help="Place of this host among them.")
    ] = 0,
    port: Annotated[
        int, typer.Option(min=1, max=65535, help="First port on each host.")
    ] = 2222,
) -> None:
    """Run a program as workers of one training, again after a failure.

    Sets TF_CONFIG, shares the GPUs of this host, prefixes the output, and
    passes signals on. Ends with the code of the worker that failed first.
    """
    launched = launcher.LaunchSettings(
        command,
        functools.partial(launcher.local_cluster, workers)
        if hosts is None
        else functools.partial(
            launcher.cluster_of_hosts, hosts.split(","), rank, workers, port
        ),
        max_restarts=max_restarts,
        grace_seconds=grace_seconds,
        gpus=launcher.gpus_of_host(),
    )
    try:
        code = launcher.launch(launched, launcher.WorkerLog(sys.stdout))
    except (ValueError, OSError) as error:
        print(error, file=sys.stderr)
        raise typer.Exit(2) from error
    raise typer.Exit(code)


@app.command()
def manifest(
    kind: Annotated[str, typer.Argument(help="kubernetes or slurm.")],
    command: Annotated[
        list[str],
        typer.Argument(help="After --: program and arguments of each worker."),
    ],
    name: Annotated[str, typer.Option(help="Name of the job.")] = "training",
    image: Annotated[
        str, typer.Option(help="Container image, for kubernetes.")
    ] = "training:latest",
    hosts: Annotated[int, typer.Option(min=1, help="Hosts.")] = 2,
    gpus: Annotated[int, typer.Option(min=0, help="GPUs of a host.")] = 1,
    max_restarts: Annotated[
        int, typer.Option(min=0, help="Restarts, for slurm.")
    ] = 3,
) -> None:
    """Print a file that starts a training on Kubernetes or Slurm."""
    if kind == "kubernetes":
        print(launcher.kubernetes_manifest(name, image, hosts, gpus, command))
    elif kind == "slurm":
        print(launcher.slurm_script(name, hosts, gpus, max_restarts, command))
    else:
        print(
            f"Unknown kind of manifest. Received: {kind!r}. "
            "Expected: kubernetes or slurm.",
            file=sys.stderr,
        )
        raise typer.Exit(2)


@app.command()
def tune(
    source: Annotated[
        str,
        typer.Argument(
            help="MLP, convnet, transformer, or module:function; the function "
            "returns a compiled model and a batch."
        ),
    ],
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
    _count_cpu_memory()
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


@app.command()
def dashboards(
    out: Annotated[
        pathlib.Path, typer.Option(help="Folder to write to.")
    ] = pathlib.Path("dashboards"),
    target: Annotated[
        list[str] | None,
        typer.Option(help="host:port of an exporter; may be repeated."),
    ] = None,
) -> None:
    """Write alert rules for Prometheus and a dashboard for Grafana."""
    targets = tuple(target or ["127.0.0.1:9090"])
    for path in write_dashboards(out, targets):
        print(path)


def _count_cpu_memory() -> None:
    """Gives CPUs the allocator of GPUs, which counts what it hands out.

    TensorFlow reads this when it first uses a device, not on import.
    """
    os.environ.setdefault("TF_CPU_ALLOCATOR_USE_BFC", "true")
