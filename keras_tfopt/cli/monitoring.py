"""The command that writes dashboards."""

import pathlib
from typing import Annotated

import typer

from keras_tfopt.telemetry.dashboards import write_dashboards


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
