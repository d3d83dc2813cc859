"""A worker that the launcher starts, and starts again."""

import os
import pathlib
import sys

import numpy as np

from tests.distribution.workers import runs
from tests.distribution.workers.place import Place


def main(folder):
    folder = pathlib.Path(folder)
    attempt = os.environ["KERAS_TFOPT_RESTARTS"]
    faults = [(1, 1, 1, runs.KILL)] if attempt == "0" else []
    place = Place()
    try:
        found = runs.train_simply(place, folder / "backup", faults)
    except SystemExit as end:
        print(f"exit code {end.code}")
        raise
    np.savez(
        folder / f"{place.index}-{attempt}.npz",
        **{name.replace("/", "|"): value for name, value in found.items()},
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
