"""Trains the same network with stock Keras and with `AccumModel`."""

from collections.abc import Callable
from collections.abc import Sequence
import dataclasses
import functools
import gc
import math
import time

import keras
import rich.console
import rich.table
import tensorflow as tf

from keras_tfopt import AccumModel
from keras_tfopt import memory
from keras_tfopt.benchmark import digits
from keras_tfopt.benchmark import progress

BATCH_SIZE = 256
MICROBATCH_SIZE = 32
LEARNING_RATE = 5e-3
WEIGHT_DECAY = 0.3
EPOCHS = 40


@dataclasses.dataclass(frozen=True)
class TrainingResult:
    """What one training came to.

    Attributes:
        name: String. How the network was trained.
        accuracy: Float. Share of the test images read correctly.
        loss: Float. Mean loss on the test images.
        updates: Integer. Updates that the optimizer made.
        seconds: Float. Wall time of `fit`, tracing included.
        peak_bytes: Integer or `None`. Most bytes in use during the training
            beyond those in use before the model was built; `None` if the
            device counts nothing.
        remark: String. What happened, if anything did. Defaults to `""`.
    """

    name: str
    accuracy: float
    loss: float
    updates: int
    seconds: float
    peak_bytes: int | None
    remark: str = ""


def run_demo(
    console: rich.console.Console, *, epochs: int = EPOCHS, seed: int = 0
) -> list[TrainingResult]:
    """Trains the network in both ways and prints a table of the results.

    Both start from the same weights and make one update per 256 images;
    `AccumModel` holds the activations of 32 images at a time.

    Args:
        console: The `rich.console.Console` to print on.
        epochs: Integer. Epochs of each training. Defaults to 40.
        seed: Integer. Seed of weights and shuffling, and of the choice of the
            test images. Defaults to 0.

    Returns:
        A `TrainingResult` for each way.

    Raises:
        MissingExtraError: If scikit-learn is not installed.
    """
    data = digits.load_digits(seed=seed)
    device = "GPU:0" if tf.config.list_physical_devices("GPU") else "CPU:0"
    console.print(
        f"{len(data.x_train)} handwritten digits to train on, "
        f"{len(data.x_test)} to test on, batches of {BATCH_SIZE}, on {device} "
        f"(TensorFlow {tf.__version__}, Keras {keras.version()})"
    )
    split = functools.partial(AccumModel, microbatch_size=MICROBATCH_SIZE)
    model_classes: dict[str, Callable[..., keras.Model]] = {
        f"stock Keras, {BATCH_SIZE} at once": keras.Model,
        f"AccumModel, {MICROBATCH_SIZE} at a time": split,
    }
    results = []
    for name, model_class in model_classes.items():
        keras.utils.set_random_seed(seed)
        with progress.EpochProgress(name, epochs, console) as callback:
            results.append(
                train(name, model_class, data, device, BATCH_SIZE, callback)
            )
    console.print(results_table(results))
    return results


def train(
    name: str,
    model_class: Callable[..., keras.Model],
    data: digits.Digits,
    device: str,
    batch_size: int,
    progress_bar: progress.EpochProgress,
    *callbacks: keras.callbacks.Callback,
) -> TrainingResult:
    """Trains and tests the network in one way.

    Args:
        name: String. How it is trained.
        model_class: Callable that makes a model of inputs and outputs.
        data: `Digits`.
        device: String. Device whose allocator is read.
        batch_size: Integer. Rows of an effective batch.
        progress_bar: `EpochProgress`, which knows the number of epochs.
        *callbacks: More callbacks for `fit`.

    Returns:
        `TrainingResult`.
    """
    # What the training before has left would be counted as freed in this one.
    gc.collect()
    before = memory.reset_allocator_peak(device)
    model = digits.build_network(model_class)
    updates_per_epoch = math.ceil(len(data.x_train) / batch_size)
    learning_rate = keras.optimizers.schedules.CosineDecay(
        LEARNING_RATE, updates_per_epoch * progress_bar.epochs
    )
    model.compile(
        optimizer=keras.optimizers.AdamW(
            learning_rate, weight_decay=WEIGHT_DECAY
        ),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    start = time.perf_counter()
    model.fit(
        data.x_train,
        data.y_train,
        batch_size=batch_size,
        epochs=progress_bar.epochs,
        callbacks=[progress_bar, *callbacks],
        verbose=0,
    )
    seconds = time.perf_counter() - start
    after = memory.read_allocator_stats(device)
    tested = model.evaluate(
        data.x_test,
        data.y_test,
        batch_size=BATCH_SIZE,
        verbose=0,
        return_dict=True,
    )
    return TrainingResult(
        name=name,
        accuracy=tested["accuracy"],
        loss=tested["loss"],
        updates=int(model.optimizer.iterations),
        seconds=seconds,
        peak_bytes=(
            None
            if before is None or after is None
            else after.peak_bytes - before.current_bytes
        ),
    )


def results_table(results: Sequence[TrainingResult]) -> rich.table.Table:
    """Puts results side by side.

    Args:
        results: Sequence of `TrainingResult`.

    Returns:
        A `rich.table.Table` with one row per result.
    """
    table = rich.table.Table()
    table.add_column("training")
    for heading in ("accuracy", "loss", "updates", "seconds", "peak MiB"):
        table.add_column(heading, justify="right")
    has_remarks = any(result.remark for result in results)
    if has_remarks:
        table.add_column("what happened")
    for result in results:
        cells = [
            result.name,
            *_figures(result),
            f"{result.seconds:.1f}",
            _mib(result.peak_bytes),
        ]
        table.add_row(*cells, *([result.remark] if has_remarks else []))
    return table


def _figures(result: TrainingResult) -> tuple[str, str, str]:
    if math.isnan(result.loss):
        return "-", "-", "-"
    accuracy = f"{result.accuracy:.2%}"
    return accuracy, f"{result.loss:.4f}", str(result.updates)


def _mib(count: int | None) -> str:
    return "-" if count is None else f"{count / 2**20:.1f}"


def failed_results(
    results: Sequence[TrainingResult], required_accuracy: float
) -> list[TrainingResult]:
    """Returns the results that read too few of the images correctly.

    Args:
        results: Sequence of `TrainingResult`.
        required_accuracy: Float. Share of the images.

    Returns:
        A list of those that are not accurate enough.
    """
    return [
        result for result in results if not result.accuracy >= required_accuracy
    ]
