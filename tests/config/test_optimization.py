import logging

import keras
import numpy as np
import pytest

from keras_tfopt import AccumModel
from keras_tfopt import ExecutionPlan
from keras_tfopt import Optimization
from keras_tfopt import callbacks
from keras_tfopt.config import precision


def of(**sections):
    return Optimization.from_dict({"tensorflow_optimization": sections})


def make_model():
    keras.utils.set_random_seed(0)
    inputs = keras.Input((4,))
    hidden = keras.layers.Dense(8, activation="tanh")(inputs)
    return keras.Model(inputs, keras.layers.Dense(1)(hidden))


def make_data(rows=20):
    generator = np.random.default_rng(0)
    x = generator.normal(size=(rows, 4)).astype("float32")
    return x, x.sum(axis=1, keepdims=True)


def train(model, run=None):
    model.compile("adam", "mse")
    return model.fit(
        *make_data(),
        batch_size=8,
        epochs=2,
        shuffle=False,
        verbose=0,
        callbacks=run.callbacks() if run else None,
    ).history


def test_trains_as_stock_keras_does(tmp_path):
    stock = make_model()
    expected = train(stock)
    run = of(
        preset="stable",
        distribution={"microbatch_size": 3},
        checkpoint={"dir": str(tmp_path / "backup"), "every_steps": 2},
    )

    with run.scope():
        model = run.prepare(make_model())
    history = train(model, run)

    assert isinstance(model, AccumModel)
    assert model.plan.microbatch_size == 3
    for ours, theirs in zip(model.weights, stock.weights, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-6)
    np.testing.assert_allclose(history["loss"], expected["loss"], atol=1e-6)


def test_accumulating_model_keeps_its_class():
    model = of(distribution={"accumulation_steps": 2}).prepare(
        AccumModel.from_model(make_model())
    )
    assert model.plan.accumulation_steps == 2
    assert [event.reason for event in model.plan_events] == ["as configured"]


def test_recomputation_is_part_of_the_plan():
    run = of(
        distribution={"accumulation_steps": 2},
        memory={"checkpoint_gradients": 2},
    )
    model = run.prepare(make_model())
    assert model.plan == ExecutionPlan(accumulation_steps=2, remat=2)
    other = of(distribution={"microbatch_size": 4}).prepare(model)
    assert other is model
    assert model.plan == ExecutionPlan(microbatch_size=4, remat=2)


def test_length_of_segments_follows_the_number_of_layers():
    layers = [keras.layers.Dense(4) for _ in range(9)]
    model = keras.Sequential([keras.Input((4,)), *layers])
    made = of(memory={"checkpoint_gradients": True}).prepare(model)
    assert made.plan == ExecutionPlan(remat=3)


def test_strategy_is_in_force_in_the_scope():
    run = of(distribution={"strategy": "one_device"})
    with run.scope():
        model = run.prepare(make_model())
    assert type(model.distribute_strategy).__name__ == "OneDeviceStrategy"


def test_strategy_that_cannot_work_is_refused():
    with pytest.raises(ValueError, match="TPU"):
        with of(distribution={"strategy": "tpu"}).scope():
            pass


def test_every_monitor_that_is_asked_for_is_there():
    added = of(
        memory={"fragmentation_check_interval": 7},
        monitoring={"metrics_port": 0, "max_slowdown": 1.5},
    ).callbacks()
    by_class = {type(callback): callback for callback in added}
    assert by_class.keys() == {
        callbacks.MemoryWatchdog,
        callbacks.FragmentationMonitor,
        callbacks.OOMRecovery,
        callbacks.PlanRollback,
        callbacks.PrometheusExporter,
        callbacks.TrainingSummary,
    }
    monitor = by_class[callbacks.FragmentationMonitor]
    assert monitor.interval_steps == 7


def test_nothing_asked_for_changes_nothing():
    model = make_model()
    run = of()

    with run.scope():
        assert run.prepare(model) is model
    assert run.callbacks() == []


def test_callbacks_are_new_for_each_fit():
    run = of(memory={})
    first, second = run.callbacks()[0], run.callbacks()[0]
    assert type(first) is type(second)
    assert first is not second


def test_section_turned_off_turns_xla_off():
    (xla,) = of(compilation={"enabled": False, "mode": "on"}).callbacks()
    assert xla.settings.mode == "off"


def test_model_with_its_own_step_goes_without_what_splits(caplog):
    class Net(keras.Model):
        def train_step(self, data):
            return super().train_step(data)

    inputs = keras.Input((4,))
    run = of(
        memory={"growth_enabled": None},
        compilation={},
        distribution={"microbatch_size": 2},
    )

    with caplog.at_level(logging.WARNING, "keras_tfopt"):
        model = run.prepare(Net(inputs, keras.layers.Dense(1)(inputs)))

    assert type(model).__name__ == "Net"
    (watchdog,) = run.callbacks()
    assert isinstance(watchdog, callbacks.MemoryWatchdog)
    assert "left out: the model has its own train_step" in caplog.text
    assert "left out: the model has its own train_step" in " ".join(
        run.explain().replace("│", " ").split()
    )
    train(model, run)


def test_precision_ends_with_the_scope(caplog):
    run = of(memory={"mixed_precision": {"compute_dtype": "bfloat16"}})
    before = keras.config.dtype_policy().name

    with run.scope():
        model = make_model()
        with caplog.at_level(logging.WARNING, "keras_tfopt"):
            run.prepare(model)

    assert keras.config.dtype_policy().name == before
    assert model.layers[1].compute_dtype == "bfloat16"
    assert f"layer '{model.layers[2].name}' is bfloat16" in caplog.text


def test_precision_that_does_not_pay_is_left_out(caplog):
    run = of(memory={"mixed_precision": True})

    with caplog.at_level(logging.WARNING, "keras_tfopt"), run.scope():
        assert keras.config.dtype_policy().name == "float32"

    assert "left out: there is no GPU or TPU" in caplog.text


@pytest.mark.parametrize("is_built", [False, True])
def test_first_loss_scale(is_built):
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD())
    model = make_model()
    model.compile(optimizer, "mse")
    if is_built:
        optimizer.build(model.trainable_variables)

    model.fit(*make_data(), verbose=0, callbacks=[precision.LossScale(1024.0)])

    assert float(optimizer.dynamic_scale) == 1024.0


def test_loss_scale_needs_an_optimizer_that_scales():
    model = make_model()
    model.compile("sgd", "mse")
    with pytest.raises(ValueError, match="the optimizer scales no loss"):
        model.fit(*make_data(), verbose=0, callbacks=[precision.LossScale(2.0)])
