import io

import keras
import numpy as np
import pytest
import rich.console

from keras_tfopt.benchmark import demo
from keras_tfopt.benchmark import progress


def result(accuracy=0.98, peak_bytes=3 * 2**20):
    return demo.TrainingResult("training", accuracy, 0.05, 12, 1.5, peak_bytes)


def printed(renderable):
    console = rich.console.Console(file=io.StringIO(), width=80)
    console.print(renderable)
    return console.file.getvalue()


def test_table_holds_each_result():
    table = printed(demo.results_table([result(), result(peak_bytes=None)]))

    for cell in ("training", "98.00%", "0.0500", "12", "1.5", "3.0"):
        assert f" {cell} " in table
    assert table.splitlines()[-2].endswith(" - │")


@pytest.mark.parametrize("accuracy", [0.9699, 0.0, float("nan")])
def test_too_little_accuracy_fails(accuracy):
    failed = result(accuracy)
    results = [result(0.97), failed, result(1.0)]
    assert demo.failed_results(results, 0.97) == [failed]


def test_both_trainings_come_to_the_same():
    console = rich.console.Console(file=io.StringIO(), width=80)

    stock, split = demo.run_demo(console, epochs=2)

    # Six batches an epoch, the last one short.
    assert stock.updates == split.updates == 12
    assert split.loss == pytest.approx(stock.loss, rel=1e-4)
    assert split.accuracy == pytest.approx(stock.accuracy, abs=0.003)
    text = console.file.getvalue()
    assert "1437 handwritten digits to train on, 360 to test on" in text
    assert f"{split.name}: epoch 2/2, loss " in text


@pytest.mark.parametrize("is_terminal", [True, False])
def test_progress_is_shown_while_training(is_terminal):
    console = rich.console.Console(
        file=io.StringIO(),
        width=80,
        force_terminal=is_terminal,
        color_system=None,
    )
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    row = np.ones((1, 1))
    shown = []

    class Spy(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            shown.append(console.file.getvalue())

    with progress.EpochProgress("training", 3, console) as bar:
        model.fit(row, row, epochs=3, callbacks=[bar, Spy()], verbose=0)
        bar._bar.refresh()

    assert "training" in shown[2]
    expected = "3/3 epochs loss " if is_terminal else "epoch 3/3, loss "
    assert expected in console.file.getvalue()
