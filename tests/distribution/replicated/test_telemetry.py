"""Telemetry says the same of replicas as of one device."""

import keras
import numpy as np
import pytest

from keras_tfopt import AccumModel
from keras_tfopt import callbacks
from keras_tfopt.telemetry.json_lines import read_json_lines
from tests import models
from tests.distribution.replicated.strategies import under

# Batches of 10, 10 and 6 rows: stock Keras cannot build itself on parts of a
# first batch that differ.
UPDATES = 6


def publishers(folder):
    return [
        callbacks.PrometheusExporter(port=None, textfile=folder / "a.prom"),
        callbacks.TensorBoardDashboard(folder, histogram_steps=2),
        callbacks.JSONLinesLogger(folder / "a.jsonl"),
        callbacks.AlertNotifier(),
        callbacks.TrainingSummary(verbose=0),
        callbacks.InputPipelineMonitor(),
    ]


@pytest.mark.parametrize("cls", [AccumModel, keras.Model])
def test_publishers(strategy, cls, tmp_path):
    model = under(strategy, models.regressor)(cls)
    added = publishers(tmp_path)
    # Without the monitors, which guard steps.
    models.fit(model, callbacks=added if cls is AccumModel else added[:-1])

    written = (tmp_path / "a.prom").read_text()
    assert f"keras_tfopt_steps_total {UPDATES}.0\n" in written
    assert f"keras_tfopt_samples_total {2 * models.ROWS}.0\n" in written
    epochs = [
        line
        for line in read_json_lines(tmp_path / "a.jsonl")
        if line["kind"] == "epoch"
    ]
    assert [line["step"] for line in epochs] == [UPDATES // 2, UPDATES]
    assert added[4].rows[0].figure.startswith(f"{UPDATES} in ")


def test_gradients(strategy, tmp_path):
    def seen(make, cls):
        keras.utils.set_random_seed(0)
        model = make(cls)
        monitor = callbacks.GradientMonitor(interval_steps=1)
        board = callbacks.TensorBoardDashboard(
            tmp_path, gradient_histogram_steps=1
        )
        models.fit(model, callbacks=[monitor, board])
        update, rows = board._gradients.read()
        assert update == UPDATES
        # Rounding may move a value on an edge to the next bin.
        ends, sizes = rows[:, :2], rows[:, 2:].sum(axis=1)
        return monitor.figures().by_variable().values(), ends, sizes

    one, one_ends, one_sizes = seen(models.regressor, keras.Model)
    several, ends, sizes = seen(under(strategy, models.regressor), AccumModel)
    np.testing.assert_allclose(ends, one_ends, rtol=1e-4, atol=1e-7)
    np.testing.assert_array_equal(sizes, one_sizes)
    for actual, expected in zip(several, one, strict=True):
        # Norms of float32.
        np.testing.assert_allclose(
            list(actual.values()), list(expected.values()), rtol=1e-4
        )
