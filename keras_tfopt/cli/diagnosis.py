"""The command that looks at the machine."""

import dataclasses
import json
import pathlib
from typing import Annotated

import rich.console
import typer

from keras_tfopt.doctor import examination


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
