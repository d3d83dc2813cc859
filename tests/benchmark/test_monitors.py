"""The figures about monitors mean what their names say."""

import io
import time

import keras
import rich.console

from keras_tfopt.benchmark import monitors
from keras_tfopt.benchmark import networks


class Slow(keras.callbacks.Callback):
    """Takes much longer than a step of a tiny network."""

    def on_train_batch_end(self, batch, logs=None):
        time.sleep(0.05)


def test_measures_all_and_prints_a_table():
    console = rich.console.Console(file=io.StringIO(), width=100)
    costs = monitors.run_benchmark(
        console,
        (networks.TINY,),
        {"slow one": Slow, **monitors.MONITORS},
        rounds=1,
        seconds=0.5,
    )
    assert [cost.monitor for cost in costs] == ["slow one", *monitors.MONITORS]
    slow = costs[0]
    assert slow.network == "tiny MLP"
    assert slow.watched > 0.05
    assert slow.ratio > 2
    assert slow.beside == 0
    frequent = costs[2]
    assert "10 readings a second" in frequent.monitor
    assert 0 < frequent.beside < 1
    printed = console.file.getvalue()
    assert "MemoryWatchdog" in printed
    assert "≤ 1.01" in printed
