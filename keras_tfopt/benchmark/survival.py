"""The demo's second part: a training that everything happens to."""

import dataclasses
import json
import pathlib
import sys

import numpy as np
import rich.console
import rich.table

from keras_tfopt import launcher
from keras_tfopt.benchmark import survivor
from keras_tfopt.benchmark import text
from keras_tfopt.benchmark.processes import limited_environment
from keras_tfopt.benchmark.processes import run_under_limit

# More than a half of a batch needs, and less than a whole one.
_SHARE = 1.25
_MIB = 2**20


@dataclasses.dataclass(frozen=True)
class Survival:
    """What became of a training that everything happened to.

    Attributes:
        limit_mib: Integer. Memory that it had.
        restarts: Integer. How often it was started again.
        stock_error: String or `None`. What stock Keras ended with; empty if
            it did not, `None` if it was not tried.
        changes: List of strings. Changes of plan, with their reasons.
        losses: List of floats. Mean loss of each epoch.
        expected_losses: The same of the undisturbed training.
        difference: Float. Largest difference of any weight from those.
        bits_without_context: Float. Bits per character by frequencies alone.
    """

    limit_mib: int
    restarts: int
    stock_error: str | None
    changes: list[str]
    losses: list[float]
    expected_losses: list[float]
    difference: float
    bits_without_context: float


def run_survival(
    console: rich.console.Console,
    folder: pathlib.Path,
    *,
    epochs: int,
    batches: int,
    seed: int = 0,
    tries_stock: bool = True,
) -> Survival:
    """Trains a transformer undisturbed, and again where all goes wrong.

    The second time it has memory for half a batch, XLA cannot compile it, and
    its process is killed in the middle of the second epoch and started again by
    the launcher. It shows itself to TensorBoard and Prometheus.

    Args:
        console: The `rich.console.Console` to print on.
        folder: Path. New folder for backups, logs and results.
        epochs: Integer. At least 2.
        batches: Integer. Batches of an epoch.
        seed: Integer. Seed of weights, masks and shuffling. Defaults to 0.
        tries_stock: Boolean. Whether to show first what stock Keras makes of
            one batch, which takes another wait of TensorFlow's allocator.
            Defaults to `True`.

    Returns:
        `Survival`.

    Raises:
        RuntimeError: If the allocator counts nothing, or the training failed.
    """
    numbers = [str(number) for number in (epochs, batches, seed)]
    characters = batches * survivor.BATCH_SIZE * text.LENGTH
    console.print(
        f"A transformer on {characters:,} characters of Python's own sources, "
        "with enough memory:"
    )
    expected = run_under_limit(
        survivor.__name__, ["undisturbed", str(folder), *numbers], None
    )
    if expected["peak_bytes"] is None:
        raise RuntimeError("The allocator of the device counts nothing.")
    limit_mib = int(expected["peak_bytes"] * _SHARE / _MIB)
    console.print(f"The same in {limit_mib} MiB, with a kill on the way:")
    variables = limited_environment(limit_mib)
    command = ["env", *(f"{name}={value}" for name, value in variables.items())]
    command += [sys.executable, "-m", survivor.__name__, "disturbed"]
    command += [str(folder), *numbers, str(limit_mib), str(int(tries_stock))]
    settings = launcher.LaunchSettings(
        command,
        lambda: launcher.local_cluster(1),
        max_restarts=1,
    )
    code = launcher.launch(
        settings,
        lambda index, line: console.print(line, markup=False, soft_wrap=True),
    )
    if code:
        raise RuntimeError(f"The training ended with code {code}.")
    return _compare(folder, limit_mib, expected["losses"])


def _compare(
    folder: pathlib.Path, limit_mib: int, expected_losses: list[float]
) -> Survival:
    found = json.loads((folder / "result.json").read_text())
    with (
        np.load(folder / "undisturbed.npz") as expected,
        np.load(folder / "disturbed.npz") as actual,
    ):
        difference = max(
            float(np.abs(actual[name] - expected[name]).max())
            for name in expected
        )
    return Survival(
        limit_mib=limit_mib,
        expected_losses=expected_losses,
        difference=difference,
        **found,
    )


def problems_of(found: Survival) -> list[str]:
    """Returns what does not show what the demo shows.

    Args:
        found: `Survival`.
    """
    changes = " ".join(found.changes)
    bits = text.to_bits(found.losses[-1])
    checks = {
        "stock Keras did not run out of memory": found.stock_error != "",
        "there was no batch to recover": "out of memory" in changes,
        "XLA refused nothing": "under XLA" in changes,
        "the training was not started again": found.restarts == 1,
        "weights differ from the undisturbed ones": found.difference <= 1e-6,
        f"{bits:.2f} bits per character": bits < found.bits_without_context,
    }
    return [problem for problem, is_fine in checks.items() if not is_fine]


def survival_table(found: Survival) -> rich.table.Table:
    """Says what happened.

    Args:
        found: `Survival`.
    """
    table = rich.table.Table(title="What happened", title_justify="left")
    table.add_column("")
    table.add_column("")
    if found.stock_error is not None:
        name = f"stock Keras in {found.limit_mib} MiB"
        table.add_row(name, found.stock_error)
    for change in found.changes:
        if "XLA is on" not in change:
            cause = change.partition(":")[0]
            table.add_row("the same batch again", cause)
    table.add_row("SIGKILL", f"started again {found.restarts} time")
    table.add_row(
        "difference from undisturbed", f"{found.difference:g} in any weight"
    )
    bits = " → ".join(f"{text.to_bits(loss):.2f}" for loss in found.losses)
    table.add_row(
        "bits per character",
        f"{bits} (by frequencies alone {found.bits_without_context:.2f})",
    )
    return table


def places(folder: pathlib.Path) -> str:
    """Says where to look.

    Args:
        folder: Path. What `run_survival` was given.
    """
    return (
        f"Curves: tensorboard --logdir {folder / 'tensorboard'}\n"
        f"Metrics for Prometheus: {folder / 'training.prom'}\n"
        f"Log of the steps: {folder / 'run.jsonl'}"
    )
