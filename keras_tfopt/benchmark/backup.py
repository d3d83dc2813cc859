"""What backups cost, against stock Keras."""

from collections.abc import Callable
import contextlib
import dataclasses
import importlib.util
import pathlib
import statistics
import tempfile
import time
from typing import Any

import keras
import numpy as np
import rich.console
import rich.table

from keras_tfopt import callbacks
from keras_tfopt.checkpoint.writer import wait_for_writers

_ROWS = 8


@dataclasses.dataclass(frozen=True)
class BackupCosts:
    """What backups of one model cost.

    Attributes:
        parameters: Integer. Parameters of the model.
        stall: Float. Seconds that training waits for a backup.
        slowdown: Float. Seconds that the step after it takes longer, for the
            values that it must not overwrite and the work of the thread.
        write: Float. Seconds from the start of a backup until it is on the
            disk.
        restore: Float. Seconds to come back to it; `None` where the callback
            does not.
        bytes: Integer. Size of a backup on the disk.
    """

    parameters: int
    stall: float
    slowdown: float
    write: float
    restore: float | None
    bytes: int


@dataclasses.dataclass(frozen=True)
class _Kind:
    """A callback that backs up.

    Attributes:
        make: Callable from an empty folder to the callback.
        wait: Callable on the callback. Waits until all is on the disk.
        restores: Boolean. Whether the next `fit` comes back to a backup.
    """

    make: Callable[[str], Any]
    wait: Callable[[Any], None]
    restores: bool = True


def _kinds() -> dict[str, _Kind]:
    """Returns what is compared; Orbax where it is installed."""
    kinds = {
        "stock Keras": _Kind(
            lambda folder: keras.callbacks.BackupAndRestore(
                folder, save_freq=2, delete_checkpoint=False
            ),
            lambda callback: None,
        ),
        "ours": _Kind(
            lambda folder: callbacks.BackupAndRestore(
                folder, save_freq=2, delete_checkpoint=False
            ),
            lambda callback: wait_for_writers(),
        ),
    }
    if importlib.util.find_spec("orbax") is not None:
        kinds["Orbax"] = _Kind(
            lambda folder: keras.callbacks.OrbaxCheckpoint(folder, save_freq=2),
            lambda callback: callback.wait_until_finished(),
            restores=False,
        )
    return kinds


class _Done(Exception):
    """Ends a `fit` and leaves its backups."""


class _Clock(keras.callbacks.Callback):
    """Notes when steps begin and end, and ends `fit` after some of them.

    Args:
        steps: Integer.
        wait: Callable. Waits until what is saved is on the disk.
    """

    def __init__(
        self, steps: int, wait: Callable[[], None] = lambda: None
    ) -> None:
        super().__init__()
        self.steps = steps
        self._wait = wait
        self.start = 0.0
        self.begins: list[float] = []
        self.ends: list[float] = []
        self.written: list[float] = []

    def get_state(self) -> None:
        """Times of one process are none of the next."""

    def set_state(self, state: None) -> None:
        """Starts anew."""

    def on_train_begin(self, logs: Any = None) -> None:
        self.start = time.perf_counter()

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.begins.append(time.perf_counter())
        if len(self.begins) > self.steps:
            raise _Done

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.ends.append(time.perf_counter())
        if len(self.ends) % 2:
            self._wait()
            self.written.append(time.perf_counter())

    def step(self, index: int) -> float:
        """Seconds of a step."""
        return self.ends[index] - self.begins[index]

    def gap(self, index: int) -> float:
        """Seconds between a step and the next."""
        return self.begins[index + 1] - self.ends[index]


def run_benchmark(
    console: rich.console.Console,
    width: int = 1024,
    depth: int = 95,
    idle_steps: int = 2000,
) -> dict[str, BackupCosts]:
    """Measures backups of a perceptron with Adam, and prints a table.

    Args:
        console: The `rich.console.Console` to print on.
        width: Integer. Units of a layer. Defaults to 1024.
        depth: Integer. Layers. Defaults to 95, for 100 million parameters.
        idle_steps: Integer. Steps for `idle_cost`. Defaults to 2000.

    Returns:
        Dict of `BackupCosts`, of `"stock Keras"`, `"ours"`, and `"Orbax"` where
        `orbax-checkpoint` is installed.
    """
    results = {}
    for name, kind in _kinds().items():
        with tempfile.TemporaryDirectory() as folder:
            results[name] = measure_backups(kind, folder, width, depth)
        keras.backend.clear_session()
    console.print(results_table(results, idle_cost(idle_steps)))
    return results


def measure_backups(
    kind: _Kind,
    folder: str,
    width: int,
    depth: int,
    rounds: int = 3,
) -> BackupCosts:
    """Measures the backups that a callback makes after every second step.

    Args:
        kind: The callback.
        folder: String. Empty folder.
        width: Integer. Units of a layer.
        depth: Integer. Layers.
        rounds: Integer. Backups to measure. Defaults to 3.

    Returns:
        `BackupCosts`.
    """
    model = _network(width, depth)
    batches = 2 * rounds + 4
    backup = kind.make(folder)
    clock = _Clock(batches - 1, lambda: kind.wait(backup))
    _fit(model, batches, [clock, backup])
    kind.wait(backup)
    # Every second step is followed by a backup, which is on the disk before the
    # next one: the odd ones, of which the first is left out.
    saved = range(3, 2 * rounds + 2, 2)
    stall = statistics.median(clock.gap(i) for i in saved)
    usual = statistics.median(clock.step(i) for i in saved)
    slowed = statistics.median(clock.step(i + 1) for i in saved)
    write = statistics.median(
        clock.written[(i + 1) // 2] - clock.ends[i] for i in saved
    )
    keras.backend.clear_session()
    restore = None
    if kind.restores:
        clock = _Clock(0)
        _fit(_network(width, depth), batches, [clock, kind.make(folder)])
        restore = clock.begins[0] - clock.start
    return BackupCosts(
        model.count_params(),
        stall,
        slowed - usual,
        write,
        restore,
        _size(folder) // getattr(backup, "keep", 1),
    )


def idle_cost(steps: int) -> float:
    """Returns the seconds between two steps that a backup takes if none is due.

    Args:
        steps: Integer. Steps of a small network.
    """
    model = _network(16, 1)
    medians = []
    with tempfile.TemporaryDirectory() as folder:
        backup = callbacks.BackupAndRestore(folder, save_freq="1h")
        for extra in ([backup], [], [backup]):
            clock = _Clock(steps)
            _fit(model, steps, [clock, *extra])
            gaps = [clock.gap(index) for index in range(1, steps - 1, 2)]
            medians.append(statistics.median(gaps))
    return medians[2] - medians[1]


def results_table(
    results: dict[str, BackupCosts], idle: float
) -> rich.table.Table:
    """Puts the costs of backups side by side.

    Args:
        results: Dict of `BackupCosts`.
        idle: Float. What `idle_cost` returned.

    Returns:
        A `rich.table.Table`.
    """
    parameters = next(iter(results.values())).parameters
    table = rich.table.Table(
        title=f"Backups of {parameters / 1e6:.0f} million parameters with Adam",
        caption=f"Between steps without a backup: {idle * 1e6:.0f} µs.",
    )
    table.add_column("")
    rows: list[tuple[str, Callable[[BackupCosts], str]]] = [
        ("training waits", lambda c: f"{c.stall:.3f} s"),
        ("the next step takes longer", lambda c: f"{c.slowdown:.2f} s"),
        ("on the disk after", lambda c: f"{c.write:.1f} s"),
        (
            "restored in",
            lambda c: "–" if c.restore is None else f"{c.restore:.1f} s",
        ),
        ("size", lambda c: f"{c.bytes / 2**20:.0f} MiB"),
    ]
    for name in results:
        table.add_column(name, justify="right")
    for heading, cell in rows:
        table.add_row(heading, *(cell(costs) for costs in results.values()))
    return table


def _network(width: int, depth: int) -> keras.Model:
    layers = [keras.layers.Dense(width) for _ in range(depth)]
    model = keras.Sequential([keras.Input((width,)), *layers])
    model.compile("adam", "mse")
    return model


def _fit(model: keras.Model, batches: int, extra: list) -> None:
    x = np.ones((_ROWS * batches, model.input_shape[-1]), "float32")
    with contextlib.suppress(_Done):
        model.fit(x, x, batch_size=_ROWS, verbose=0, callbacks=extra)


def _size(folder: str) -> int:
    files = pathlib.Path(folder).rglob("*")
    return sum(path.stat().st_size for path in files if path.is_file())


if __name__ == "__main__":
    run_benchmark(rich.console.Console())
