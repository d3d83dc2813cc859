"""Commands about the YAML file."""

import json
import pathlib
from typing import Annotated

import typer

from keras_tfopt.config import ConfigurationError
from keras_tfopt.config import Optimization


def explain(
    file: Annotated[pathlib.Path, typer.Argument(help="The YAML file.")],
) -> None:
    """Check a configuration, and tell what it will do here, and what not."""
    try:
        print(Optimization.from_yaml(file).explain())
    except (ConfigurationError, OSError) as error:
        print(error)
        raise typer.Exit(2) from error


def schema() -> None:
    """Print the JSON Schema of a configuration, for editors."""
    print(json.dumps(Optimization.json_schema(), indent=2))
