import json
import math

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_tfopt import Optimization
from keras_tfopt.config import tuning
from keras_tfopt.config.schema import MixedPrecision
from keras_tfopt.config.tuning import Tuning
from keras_tfopt.config.tuning import TuningLimits
from keras_tfopt.memory import AllocatorStats
from keras_tfopt.plan import ExecutionPlan


def make_model(*layers):
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [keras.Input((4,)), *layers, keras.layers.Dense(1, name="last")]
    )
    model.compile("sgd", "mse", metrics=["mae"])
    return model


@pytest.fixture
def batch():
    generator = np.random.default_rng(0)
    x = generator.normal(size=(8, 4)).astype("float32")
    return x, x.sum(axis=1, keepdims=True)


def tune(model, batch, compute_dtype=None, **limits):
    limits = {"budget_seconds": 60, "max_loss_difference": 0.01, **limits}
    return Tuning(
        model,
        batch,
        MixedPrecision(compute_dtype=compute_dtype),
        TuningLimits(max_utilization=0.85, **limits),
    ).run()


def remarks(report):
    return {row.name: row.remark for row in report.rows}


def test_chooses_what_measures_best(batch, monkeypatch):
    """The clock alone is set: what is measured here depends on the machine."""

    def measure(trials, rounds):
        for trial in trials:
            trial.seconds = 2.0 if trial.plan.jit_compile else 3.0
            trial.seconds -= (trial.plan.microbatch_size == 4) * 0.5

    monkeypatch.setattr(tuning, "measure_by_turns", measure)

    report = tune(make_model(), batch)

    assert report.plan == ExecutionPlan(microbatch_size=4, jit_compile=True)
    assert report.speedup == 2.0
    assert remarks(report) == {
        "baseline": "kept",
        "mixed precision": "not tried: there is no GPU or TPU",
        "XLA": "kept",
        "micro-batches of 4": "kept",
        "micro-batches of 2": "not faster",
        "remat": "not tried: memory is not short",
        "remat and offload": "not tried: memory is not short",
    }
    run = Optimization.from_dict({"tensorflow_optimization": {}})
    chosen = run.with_tuning(report).configuration
    assert chosen.compilation.mode == "on"
    assert chosen.distribution.microbatch_size == 4


def test_layers_are_recomputed_where_memory_is_short(batch, monkeypatch):
    """The allocator's figures are set: this one counts nothing."""

    def peak(trial):
        rows = trial.plan.rows_of_microbatch(8)
        return rows * (1 if trial.plan.remat else 2)

    def measure(trials, rounds):
        for trial in trials:
            trial.seconds = 8 / trial.plan.rows_of_microbatch(8)
            trial.peak_bytes = peak(trial)

    monkeypatch.setattr(tuning, "measure_by_turns", measure)
    monkeypatch.setattr(tuning, "device_limit_bytes", lambda device: 10)
    monkeypatch.setattr(
        tuning, "read_allocator_stats", lambda device: AllocatorStats(0, 0)
    )
    model = make_model(*[keras.layers.Dense(4) for _ in range(3)])

    report = tune(model, batch)

    assert remarks(report) == {
        "baseline": "needs more memory than it may",
        "mixed precision": "not tried: there is no GPU or TPU",
        "XLA": "needs more memory than it may",
        "micro-batches of 4": "kept",
        "micro-batches of 2": "not faster",
        "remat, 8 rows": "kept",
        "remat and offload": "not tried: there is no memory but the host's",
    }
    assert report.plan == ExecutionPlan(remat=2)
    chosen = Optimization.from_dict({"tensorflow_optimization": {}})
    memory = chosen.with_tuning(report).configuration.memory
    assert memory.checkpoint_gradients == 2


def test_other_losses_are_not_kept(batch):
    model = make_model(keras.layers.BatchNormalization())

    report = tune(model, batch, max_loss_difference=1e-4)

    assert remarks(report)["micro-batches of 4"].startswith("losses differ")
    assert report.plan.microbatch_size is None


def test_what_xla_refuses_is_reverted(batch):
    refused = keras.layers.Lambda(
        lambda x: x + tf.strings.to_number(tf.strings.as_string(x)),
        output_shape=(4,),
    )
    model = make_model(refused)

    report = tune(model, batch)

    assert "InvalidArgumentError" in remarks(report)["XLA"]
    assert not report.plan.jit_compile


def test_time_is_kept(batch):
    report = tune(make_model(), batch, budget_seconds=1e-9)
    assert [row.is_kept for row in report.rows] == [True] + [False] * 5
    assert remarks(report)["XLA"] == "not tried: the time is used up"


def test_precision_is_tried_on_a_copy(batch, monkeypatch):
    def measure(trials, rounds):
        for trial in trials:
            is_half = trial.model.layers[0].compute_dtype == "bfloat16"
            trial.seconds = 1.0 if is_half else 2.0

    monkeypatch.setattr(tuning, "measure_by_turns", measure)
    model = make_model(keras.layers.Dense(8, name="first"))

    report = tune(
        model, batch, compute_dtype="bfloat16", max_loss_difference=0.1
    )

    assert report.policy == "mixed_bfloat16"
    assert model.layers[0].compute_dtype == "float32"
    assert report.sections()["memory"] == {
        "mixed_precision": {"compute_dtype": "bfloat16"}
    }


def test_report_is_json_and_a_table(batch):
    report = tune(make_model(), batch, budget_seconds=1e-9)

    read = json.loads(report.to_json())

    assert [row["name"] for row in read["rows"]][0] == "baseline"
    assert math.isclose(read["speedup"], 1.0)
    assert report.table().row_count == 6


def test_model_that_cannot_be_tried_is_refused(batch):
    run = Optimization.from_dict({"tensorflow_optimization": {}})
    model = make_model()
    model.compile("sgd", "mse", run_eagerly=True)
    with pytest.raises(ValueError, match="Plans are tried on Keras' own step"):
        run.tune(model, batch)


def test_first_batch(batch):
    dataset = tf.data.Dataset.from_tensor_slices(batch).batch(2)
    assert tuning.first_batch(dataset)[0].shape == (2, 4)
    assert tuning.first_batch(batch) is batch
