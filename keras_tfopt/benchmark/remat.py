"""What rematerialization and offloading save and cost.

Without a GPU, a logical CPU stands for one, and the peak of what it offloads is
taken from the trace of the allocator. How fast a GPU's copies are shows only on
a GPU.

Run it with `python -m keras_tfopt.benchmark.remat`.
"""

from collections.abc import Callable
import contextlib
import dataclasses
import math
import os
from typing import Any

import keras
import numpy as np
import rich.console
import rich.table
import tensorflow as tf

from keras_tfopt import AccumModel
from keras_tfopt import ExecutionPlan
from keras_tfopt import trace_memory
from keras_tfopt.benchmark.host_share import HostShare
from keras_tfopt.benchmark.host_share import divide_cpu
from keras_tfopt.benchmark.host_share import host_share
from keras_tfopt.benchmark.host_share import stand_in
from keras_tfopt.benchmark.measuring import alternate
from keras_tfopt.benchmark.measuring import peak_bytes
from keras_tfopt.memory.limit import default_device
from keras_tfopt.memory.segmentation import even_spans
from keras_tfopt.training.activation_profile import profile_activations
from keras_tfopt.training.remat import lowest_remat
from keras_tfopt.training.remat import spans_as_remat

EVERY = (1, 2, 4, 8)
_MIB = 2**20


@dataclasses.dataclass(frozen=True)
class RematFigures:
    """What a way to save memory costs on a network.

    Attributes:
        network: String.
        compiler: String. `"graph"` or `"XLA"`.
        choice: String. What is computed again, and whether the host keeps it.
        peak_bytes: Integer or `None`. What a step needs at most on top of what
            is in use between steps.
        peak_ratio: Float or `None`. Of that without rematerialization.
        time_ratio: Float. Of the median time of a step without it.
        host_bytes: Integer or `None`. What waits on the host at most, where it
            was told apart.
    """

    network: str
    compiler: str
    choice: str
    peak_bytes: int | None
    peak_ratio: float | None
    time_ratio: float
    host_bytes: int | None = None


def run_benchmark(
    console: rich.console.Console, rounds: int = 7, depth: int = 16
) -> list[RematFigures]:
    """Measures all choices on all networks and prints a table.

    Args:
        console: The `rich.console.Console` to print on.
        rounds: Integer. How often each step is timed. Defaults to 7.
        depth: Integer. Blocks of the perceptron; the transformer has half as
            many. Defaults to 16.

    Returns:
        List of `RematFigures`.
    """
    figures = []
    for name, make in _NETWORKS.items():
        for jit_compile in (False, True):
            # XLA compiles for the first of logical CPUs.
            scope = contextlib.nullcontext() if jit_compile else stand_in()
            with scope, console.status(f"measuring {name}"):
                figures += measure(name, make, depth, jit_compile, rounds)
            keras.backend.clear_session()
    console.print(figures_table(figures))
    return figures


def measure(
    name: str,
    make: Callable[[int], tuple[Any, Any, Any]],
    depth: int,
    jit_compile: bool,
    rounds: int,
) -> list[RematFigures]:
    """Measures all choices on one network.

    Args:
        name: String. Name of the network.
        make: Callable of a depth that returns inputs, outputs and a batch.
        depth: Integer.
        jit_compile: Boolean. Whether XLA compiles the steps.
        rounds: Integer. How often each step is timed.

    Returns:
        List of `RematFigures`.
    """
    plans = {
        choice: plan
        for choice, plan in _choices(make, depth).items()
        if not (jit_compile and plan.streams)
    }
    functions = {
        choice: _step(make, depth, jit_compile, plan)
        for choice, plan in plans.items()
    }
    device = default_device()
    # The one buffer of XLA may be given a larger free block: small ones first.
    peaks = {
        choice: peak_bytes(functions[choice], device)
        for choice in reversed(functions)
    }
    shares = {
        choice: _share(make, depth, plan)
        for choice, plan in plans.items()
        if plan.streams and device.startswith("CPU") and peaks["none"]
    }
    peaks.update({c: share.device_bytes for c, share in shares.items()})
    seconds = alternate(functions, rounds)
    full = peaks["none"]
    return [
        RematFigures(
            name,
            "XLA" if jit_compile else "graph",
            choice,
            peaks[choice],
            None if full is None else (peaks[choice] or 0) / full,
            seconds[choice] / seconds["none"],
            shares[choice].host_bytes if choice in shares else None,
        )
        for choice in functions
    ]


def figures_table(figures: list[RematFigures]) -> rich.table.Table:
    """Puts figures below each other.

    Args:
        figures: List of `RematFigures`.

    Returns:
        A `rich.table.Table`.
    """
    table = rich.table.Table()
    for heading in ("network", "compiler", "computed again"):
        table.add_column(heading, no_wrap=True)
    for heading in ("peak MiB", "peak ratio", "time ratio", "host MiB"):
        table.add_column(heading, justify="right")
    for row in figures:
        peak, ratio = row.peak_bytes, row.peak_ratio
        table.add_row(
            row.network,
            row.compiler,
            row.choice,
            "-" if peak is None else f"{peak / _MIB:.1f}",
            "-" if ratio is None else f"{ratio:.2f}",
            f"{row.time_ratio:.2f}",
            "-" if row.host_bytes is None else f"{row.host_bytes / _MIB:.1f}",
        )
    return table


def _choices(make: Callable, depth: int) -> dict[str, ExecutionPlan]:
    """Returns what is compared, by name."""
    model, batch = _build(make, depth, False, ExecutionPlan())
    profile = profile_activations(model, batch)
    even = even_spans(profile, round(math.sqrt(len(profile.names))))
    remats = {
        **{f"every {every} layers": every for every in EVERY},
        "square root": spans_as_remat(model, even),
        "lowest peak": lowest_remat(model, batch),
    }
    plans = {name: ExecutionPlan(remat=r) for name, r in remats.items()}
    for name in ("every 1 layers", "every 4 layers", "lowest peak"):
        plans[f"{name}, offloaded"] = dataclasses.replace(
            plans[name], offload=("activations",)
        )
    return {"none": ExecutionPlan(), **plans}


def _build(
    make: Callable, depth: int, jit_compile: bool, plan: ExecutionPlan
) -> tuple[keras.Model, Any]:
    # Segments are given by names, which are counted.
    keras.utils.clear_session()
    keras.utils.set_random_seed(0)
    inputs, outputs, batch = make(depth)
    settings = {"remat": plan.remat, "offload": plan.offload}
    model = AccumModel(inputs, outputs, **settings)
    model.compile("sgd", "mse", jit_compile=jit_compile)
    return model, batch


def _share(make: Callable, depth: int, plan: ExecutionPlan) -> HostShare:
    model, batch = _build(make, depth, False, plan)
    return host_share(trace_memory(model, batch))


def _step(
    make: Callable, depth: int, jit_compile: bool, plan: ExecutionPlan
) -> Callable[[], None]:
    """Returns a function that makes one step."""
    model, batch = _build(make, depth, jit_compile, plan)
    model.make_train_function()

    def step() -> None:
        model.train_function(iter([batch]))

    return step


def _perceptron(depth: int) -> tuple[Any, Any, Any]:
    inputs = outputs = keras.Input((128,))
    for _ in range(depth):
        outputs = keras.layers.Dense(128)(outputs)
        outputs = keras.layers.BatchNormalization()(outputs)
        outputs = keras.layers.Activation("gelu")(outputs)
        outputs = keras.layers.Dropout(0.1)(outputs)
    return inputs, keras.layers.Dense(1)(outputs), _batch(1024, 128)


def _transformer(depth: int) -> tuple[Any, Any, Any]:
    inputs = outputs = keras.Input((32, 64))
    for _ in range(depth // 2):
        attention = keras.layers.MultiHeadAttention(4, 16)(outputs, outputs)
        outputs = keras.layers.LayerNormalization()(outputs + attention)
        hidden = keras.layers.Dense(256, activation="gelu")(outputs)
        hidden = keras.layers.Dense(64)(hidden)
        outputs = keras.layers.LayerNormalization()(outputs + hidden)
    outputs = keras.layers.GlobalAveragePooling1D()(outputs)
    return inputs, keras.layers.Dense(1)(outputs), _batch(64, 32, 64)


def _batch(*shape: int) -> tuple[tf.Tensor, tf.Tensor]:
    x = np.random.default_rng(0).normal(size=shape).astype("float32")
    return tf.constant(x), tf.zeros((shape[0], 1))


_NETWORKS = {"MLP": _perceptron, "transformer": _transformer}


if __name__ == "__main__":
    # Gives CPUs the allocator of GPUs, which counts what it hands out.
    os.environ.setdefault("TF_CPU_ALLOCATOR_USE_BFC", "true")
    if not tf.config.list_physical_devices("GPU"):
        divide_cpu()
    run_benchmark(rich.console.Console())
