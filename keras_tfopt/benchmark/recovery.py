"""What recovery gains and costs, under a limit that stock Keras dies in."""

import dataclasses
import functools
import sys
import time
from typing import Any

import keras
import rich.console
import rich.table
import tensorflow as tf

from keras_tfopt import AccumModel
from keras_tfopt import callbacks
from keras_tfopt.benchmark.measuring import alternate
from keras_tfopt.benchmark.networks import NETWORKS
from keras_tfopt.benchmark.processes import answer
from keras_tfopt.benchmark.processes import run_under_limit
from keras_tfopt.memory.limit import limit_gpus

LIMIT_MIB = 300
_MICROBATCH_SIZE = 8192
# Sizes are multiplied by this until one does not fit.
_GROWTH = 2
_LARGEST = 2**20
_NETWORK = NETWORKS[0]
_MIB = 2**20


@dataclasses.dataclass(frozen=True)
class RecoveryFigures:
    """What was measured under the limit.

    Attributes:
        stock_rows: Integer. Largest batch that stock Keras trains on.
        split_rows: Integer. Largest batch in micro-batches of 8192 rows.
        stock_seconds: Float. From the start of a step that does not fit until
            stock Keras raises: mostly the wait of TensorFlow's allocator.
        failures: Integer. Failures until a step of the same batch succeeded.
        recovery_seconds: Float. From the start of that step until it did.
        recovered_ms: Float. Time per batch after recovery.
        fixed_ms: Float. Time per batch with the best fixed micro-batch.
    """

    stock_rows: int
    split_rows: int
    stock_seconds: float
    failures: int
    recovery_seconds: float
    recovered_ms: float
    fixed_ms: float


def run_recovery(console: rich.console.Console) -> RecoveryFigures:
    """Measures in processes of their own and prints a table.

    Args:
        console: The `rich.console.Console` to print on.

    Returns:
        `RecoveryFigures`.
    """
    with console.status(f"measuring the MLP in {LIMIT_MIB} MiB"):
        largest = {name: _ask("largest", name) for name in ("stock", "split")}
        rows = _GROWTH * largest["stock"]["rows"]
        found = _ask("recover", str(rows))
    figures = RecoveryFigures(
        stock_rows=largest["stock"]["rows"],
        split_rows=largest["split"]["rows"],
        stock_seconds=largest["stock"]["seconds"],
        **found,
    )
    console.print(figures_table(figures))
    return figures


def figures_table(figures: RecoveryFigures) -> rich.table.Table:
    """Puts figures below each other.

    Args:
        figures: `RecoveryFigures`.

    Returns:
        A `rich.table.Table`.
    """
    table = rich.table.Table(title=f"MLP in {LIMIT_MIB} MiB")
    for heading in ("measured", "stock Keras", "ours", "ratio", "unit"):
        is_text = heading in ("measured", "unit")
        table.add_column(heading, justify="left" if is_text else "right")
    table.add_row(
        "largest effective batch",
        str(figures.stock_rows),
        str(figures.split_rows),
        f"{figures.split_rows / figures.stock_rows:.0f}",
        "rows",
    )
    waits = figures.failures * figures.stock_seconds
    table.add_row(
        f"{figures.failures} failures: error, next good step",
        f"{waits:.1f}",
        f"{figures.recovery_seconds:.1f}",
        f"{figures.recovery_seconds / waits:.2f}",
        "s",
    )
    table.add_row(
        "batch: best fixed micro-batch, after recovery",
        f"{figures.fixed_ms:.1f}",
        f"{figures.recovered_ms:.1f}",
        f"{figures.recovered_ms / figures.fixed_ms:.2f}",
        "ms",
    )
    return table


def _ask(*arguments: str) -> Any:
    return run_under_limit(__name__, list(arguments), LIMIT_MIB)


def _batch(rows: int) -> tuple[tf.Tensor, tf.Tensor]:
    return (
        tf.zeros((rows, *_NETWORK.input_shape)),
        tf.zeros((rows,), tf.int64),
    )


def _largest(name: str) -> dict[str, float]:
    """Doubles the batch until a step does not fit."""
    if name == "stock":
        model = _NETWORK.build(keras.Model)
    else:
        model = _NETWORK.build(
            functools.partial(AccumModel, microbatch_size=_MICROBATCH_SIZE)
        )
    model.make_train_function()
    fits, rows = 0, _MICROBATCH_SIZE // 4
    seconds = 0.0
    while rows <= _LARGEST:
        start = time.perf_counter()
        try:
            batch = _batch(rows)
            start = time.perf_counter()
            model.train_function(iter([batch]))
        except tf.errors.ResourceExhaustedError:
            seconds = time.perf_counter() - start
            break
        fits, rows = rows, rows * _GROWTH
    return {"rows": fits, "seconds": seconds}


def _recover(rows: int) -> dict[str, float]:
    """Trains a plain model on batches that do not fit, and on splits."""
    data = tf.data.Dataset.from_tensors(_batch(rows)).repeat(3)
    plain = _NETWORK.build(keras.Model)
    recovery = callbacks.OOMRecovery(grow_after=None)
    start = time.perf_counter()
    plain.fit(data.take(1), callbacks=[recovery], verbose=0)
    seconds = time.perf_counter() - start
    size = recovery.plan_events[-1].new.microbatch_size or rows
    fixed = {
        part: _NETWORK.build(
            functools.partial(AccumModel, microbatch_size=part)
        )
        for part in (size, size // 2, size // 4)
    }
    functions: dict[Any, Any] = {
        part: functools.partial(model.fit, data, verbose=0)
        for part, model in fixed.items()
    }
    functions["recovered"] = functools.partial(
        plain.fit, data, verbose=0, callbacks=[recovery]
    )
    times = {
        name: 1000 * value / 3
        for name, value in alternate(functions, 7).items()
    }
    return {
        "failures": len(recovery.plan_events),
        "recovery_seconds": seconds,
        "recovered_ms": times.pop("recovered"),
        "fixed_ms": min(times.values()),
    }


if __name__ == "__main__":
    limit_gpus(LIMIT_MIB * _MIB)
    if sys.argv[1] == "largest":
        answer(_largest(sys.argv[2]))
    else:
        answer(_recover(int(sys.argv[2])))
