"""The demo under a limit: what stock Keras and recovery make of it."""

from collections.abc import Sequence
import dataclasses
import math
import sys
import time

import keras
import rich.console
import tensorflow as tf

from keras_tfopt import callbacks
from keras_tfopt.benchmark import demo
from keras_tfopt.benchmark import digits
from keras_tfopt.benchmark import progress
from keras_tfopt.benchmark.processes import answer
from keras_tfopt.benchmark.processes import run_under_limit
from keras_tfopt.memory.allocator import read_allocator_stats
from keras_tfopt.memory.limit import default_device
from keras_tfopt.memory.limit import limit_gpus

# Share of what the training needs that it gets under the limit.
_SHARE = 0.64
_MIB = 2**20


def run_limited_demo(
    console: rich.console.Console, *, epochs: int, seed: int
) -> list[demo.TrainingResult]:
    """Trains on all images at once, with enough memory and with too little.

    Each training has a process of its own, since TensorFlow takes a limit only
    when it starts.

    Args:
        console: The `rich.console.Console` to print on.
        epochs: Integer. Epochs of each training, of one update each.
        seed: Integer. As for `run_demo`.

    Returns:
        List of `TrainingResult`: stock Keras without a limit, stock Keras
        under one, and stock Keras with `OOMRecovery` under the same.
    """
    free = _in_process("unlimited", epochs, seed, limit_mib=None)
    if free.peak_bytes is None:
        raise RuntimeError("The allocator of the device counts nothing.")
    limit_mib = int(free.peak_bytes * _SHARE / _MIB)
    results = [free] + [
        _in_process(name, epochs, seed, limit_mib)
        for name in ("stock", "recovering")
    ]
    console.print(
        f"The same network with all images in one batch, in {limit_mib} MiB "
        f"where it needs {free.peak_bytes / _MIB:.0f}:"
    )
    console.print(demo.results_table(results))
    return results


def unexpected(results: Sequence[demo.TrainingResult]) -> list[str]:
    """Returns what does not show what the demo shows.

    Args:
        results: What `run_limited_demo` returned.
    """
    free, stock, recovering = results
    found = []
    if not stock.remark:
        found.append("stock Keras did not run out of memory under the limit")
    if not recovering.remark:
        found.append("there was nothing to recover from")
    if abs(recovering.accuracy - free.accuracy) > 1 / digits.TEST_ROWS:
        found.append("accuracy after recovery differs from that without limit")
    return found


def _in_process(
    name: str, epochs: int, seed: int, limit_mib: int | None
) -> demo.TrainingResult:
    arguments = [name, str(epochs), str(seed), str(limit_mib or 0)]
    return demo.TrainingResult(
        **run_under_limit(__name__, arguments, limit_mib)
    )


def _main(name: str, epochs: int, seed: int, limit_mib: int) -> None:
    """Runs one training and writes its result as JSON."""
    if limit_mib:
        limit_gpus(limit_mib * _MIB)
    label = {
        "unlimited": "stock Keras",
        "stock": f"stock Keras in {limit_mib} MiB",
        "recovering": f"OOMRecovery in {limit_mib} MiB",
    }[name]
    recovery = callbacks.OOMRecovery()
    added = [recovery] if name == "recovering" else []
    data = digits.load_digits(seed=seed)
    device = default_device()
    keras.utils.set_random_seed(seed)
    console = rich.console.Console(stderr=True)
    start = time.perf_counter()
    with progress.EpochProgress(label, epochs, console) as bar:
        try:
            result = demo.train(
                label,
                keras.Model,
                data,
                device,
                len(data.x_train),
                bar,
                *added,
            )
        except tf.errors.ResourceExhaustedError:
            seconds = time.perf_counter() - start
            result = _out_of_memory(label, device, seconds)
    if recovery.plan_events:
        remark = _describe_recovery(recovery)
        result = dataclasses.replace(result, remark=remark)
    answer(dataclasses.asdict(result))


def _out_of_memory(
    label: str, device: str, seconds: float
) -> demo.TrainingResult:
    stats = read_allocator_stats(device)
    return demo.TrainingResult(
        name=label,
        accuracy=math.nan,
        loss=math.nan,
        updates=0,
        seconds=seconds,
        peak_bytes=None if stats is None else stats.peak_bytes,
        remark="out of memory",
    )


def _describe_recovery(recovery: callbacks.OOMRecovery) -> str:
    sizes = [event.new.microbatch_size for event in recovery.plan_events]
    seconds = sum(event.seconds for event in recovery.plan_events)
    rows = " and ".join(str(size or "all") for size in sizes)
    return f"{rows} rows at a time, {seconds:.0f} s lost"


if __name__ == "__main__":
    _main(sys.argv[1], *(int(argument) for argument in sys.argv[2:]))
