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


def test_gradients(strategy):
    def norms(make, cls):
        keras.utils.set_random_seed(0)
        model = make(cls)
        monitor = callbacks.GradientMonitor(interval_steps=1)
        models.fit(model, callbacks=[monitor])
        return monitor.figures().by_variable().values()

    one = norms(models.regressor, keras.Model)
    several = norms(under(strategy, models.regressor), AccumModel)
    for actual, expected in zip(several, one, strict=True):
        # Norms of float32.
        np.testing.assert_allclose(
            list(actual.values()), list(expected.values()), rtol=1e-4
        )
