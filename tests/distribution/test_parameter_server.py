"""A cluster of real processes trains through a coordinator."""

import json
import sys

import keras
import numpy as np
import pytest

from keras_tfopt import launcher
from tests import models
from tests.equivalence import run

pytestmark = pytest.mark.distributed
STEPS = 13


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """What the coordinator wrote: one entry for each of its cases."""
    folder = tmp_path_factory.mktemp("cluster")
    lines = []
    settings = launcher.LaunchSettings(
        [sys.executable, "-m", "tests.distribution.coordinated", str(folder)],
        lambda: launcher.local_cluster(2, parameter_servers=1),
    )
    code = launcher.launch(settings, lambda *line: lines.append(line))
    assert code == 0, lines
    return json.loads((folder / "results.json").read_text())


def assert_equal(result, outcome):
    """A training equals one on a single device."""
    iterations = outcome.model.optimizer.iterations
    assert result["iterations"] == int(iterations)
    assert result["history"].keys() == outcome.history.keys()
    for key, values in outcome.history.items():
        np.testing.assert_allclose(
            result["history"][key], values, rtol=1e-6, atol=1e-6
        )
    for actual, wanted in zip(
        result["weights"], outcome.model.get_weights(), strict=True
    ):
        np.testing.assert_allclose(actual, wanted, rtol=1e-6, atol=1e-6)


def test_two_workers_train_and_lose_no_count(results):
    result = results["arrays"]
    assert result["iterations"] == 3 * STEPS
    assert [updates for updates, _ in result["epochs"]] == [
        STEPS,
        2 * STEPS,
        3 * STEPS,
    ]
    losses = result["history"]["loss"]
    assert losses[-1] < losses[0]
    assert set(result["counts"]) == {models.ROWS}
    assert len(result["counts"]) >= 3
    assert result["history"].keys() >= {"val_loss", "val_r2_score"}


def test_callbacks_see_all_batches_in_their_order(results):
    result = results["arrays"]
    batches = list(range(STEPS)) * 3
    assert result["begun"] == batches
    assert [batch for batch, _ in result["ended"]] == batches
    # The first batches are handed out before any is done.
    assert "loss" in result["ended"][STEPS - 1][1]


def test_evaluation_and_prediction_are_those_of_one_device(results):
    result = results["arrays"]
    metrics = ["mse", keras.metrics.R2Score()]
    model = models.regressor(keras.Model, {"metrics": metrics})
    model.set_weights([np.array(weight) for weight in result["weights"]])
    expected = model.evaluate(
        models.X, models.Y, batch_size=4, verbose=0, return_dict=True
    )
    assert result["evaluated"].keys() == expected.keys()
    for key, value in expected.items():
        np.testing.assert_allclose(
            result["evaluated"][key], value, rtol=1e-5, atol=1e-5
        )
        last = result["history"][f"val_{key}"][-1]
        np.testing.assert_allclose(last, value, rtol=1e-5, atol=1e-5)
    outputs = model.predict(models.X, verbose=0)
    np.testing.assert_allclose(result["outputs"], outputs, rtol=1e-5, atol=1e-6)


def test_workers_draw_from_datasets_of_their_own(results):
    result = results["workers_own_data"]
    assert result["iterations"] == 2 * 9
    assert set(result["counts"]) == {9 * 4}
    assert "Expected: one that repeats" in result["ended"]
    # Afterwards the coordinator draws again.
    assert set(result["counts_after"]) == {models.ROWS}


def test_step_of_ones_own_and_a_step_that_fails(results):
    result = results["own_step"]
    assert "an input is too large" in result["error"]
    assert result["updates"] == STEPS
    assert result["history"].keys() == {"loss", "own"}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("jit_compile", "jit_compile=True. Expected: jit_compile=False"),
        ("steps", "steps_per_epoch=None"),
        ("metric", "Smallest 'smallest'"),
        ("oom_recovery", "ParameterServerStrategyV2. Expected:"),
    ],
)
def test_refused(results, name, message):
    assert message in results["refused"][name]


def test_worker_that_is_killed(results):
    result = results["worker_dies"]
    steps = 2 * models.ROWS
    # Its step runs again, whether or not it had reached the variables.
    assert steps <= result["iterations"] <= steps + 1
    assert set(result["counts"]) == {models.ROWS}
    losses = result["history"]["loss"]
    assert len(losses) == 2 and losses[1] < losses[0]


def test_one_worker_equals_one_device(results):
    def train(model):
        return models.fit(model, validation_data=(models.X, models.Y))

    expected = run(models.regressor, train, keras.Model)
    assert_equal(results["one_worker"], expected)


def test_weights_that_are_saved_and_loaded(results, tmp_path):
    path = str(tmp_path / "model.weights.h5")
    model = run(models.regressor, models.fit, keras.Model).model
    model.save_weights(path)

    def train_on(model):
        model.optimizer.build(model.trainable_variables)
        model.load_weights(path)
        return models.fit(model)

    expected = run(models.regressor, train_on, keras.Model)
    assert_equal(results["one_worker"]["restored"], expected)


def test_backup_inside_of_an_epoch(results):
    assert_equal(results["backup"], models.stock_outcome())
