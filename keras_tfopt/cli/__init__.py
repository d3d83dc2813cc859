"""The command line of keras_tfopt."""

from typing import Annotated

import typer

from keras_tfopt._version import __version__
from keras_tfopt.cli.configuration import explain
from keras_tfopt.cli.configuration import schema
from keras_tfopt.cli.diagnosis import doctor
from keras_tfopt.cli.monitoring import dashboards
from keras_tfopt.cli.planning import fit_plan
from keras_tfopt.cli.planning import trace
from keras_tfopt.cli.planning import tune
from keras_tfopt.cli.training import bench
from keras_tfopt.cli.training import demo
from keras_tfopt.cli.workers import launch
from keras_tfopt.cli.workers import manifest

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


for _command in (
    demo,
    bench,
    doctor,
    explain,
    schema,
    fit_plan,
    trace,
    tune,
    launch,
    manifest,
    dashboards,
):
    app.command()(_command)
