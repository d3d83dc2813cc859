import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_tfopt import AccumModel
from keras_tfopt import callbacks
from keras_tfopt.telemetry.records import Detail
from tests import models
from tests.telemetry.capture import Capture

BATCHES = -(-models.ROWS // models.BATCH)


def expected(model, x, y):
    """Returns gradient norms by variable, as a plain tape gives them."""
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(y - model(x, training=True)))
    values = [v.value for v in model.trainable_variables]
    gradients = tape.gradient(loss, values)
    return {
        v.path: float(tf.norm(tf.convert_to_tensor(g)))
        for v, g in zip(model.trainable_variables, gradients, strict=True)
    }


def one_step(model, monitor, x=models.X, y=models.Y, **kwargs):
    return models.fit(
        model, x, y, epochs=1, batch_size=len(x), callbacks=[monitor], **kwargs
    )


@pytest.mark.parametrize(
    ("cls", "settings", "compile_with"),
    [
        (keras.Model, {}, {}),
        (AccumModel, {"microbatch_size": 4}, {}),
        (AccumModel, {"microbatch_size": 4}, {"jit_compile": True}),
        (AccumModel, {}, {"run_eagerly": True}),
    ],
)
def test_norms_are_those_of_the_whole_batch(cls, settings, compile_with):
    optimizer = keras.optimizers.SGD(0.5, global_clipnorm=1e-3)
    model = models.regressor(
        cls, {"optimizer": optimizer, **compile_with}, **settings
    )
    norms = expected(model, models.X, models.Y)
    before = {v.path: v.numpy() for v in model.trainable_variables}
    monitor = callbacks.GradientMonitor(interval_steps=1)
    one_step(model, monitor)

    figures = monitor.figures()
    seen = figures.by_variable()
    assert set(seen) == set(norms)
    for variable in model.trainable_variables:
        row = seen[variable.path]
        old = before[variable.path]
        change = np.linalg.norm(variable.numpy() - old)
        assert row["gradient_norm"] == pytest.approx(norms[variable.path], 1e-5)
        assert row["weight_norm"] == pytest.approx(np.linalg.norm(old))
        assert row["update_norm"] == pytest.approx(change, rel=1e-4)
    total = np.linalg.norm(list(norms.values()))
    assert figures.gradient_norm == pytest.approx(total, rel=1e-5)
    # The update is of the clipped gradient.
    weights = np.sqrt(sum(np.sum(np.square(w)) for w in before.values()))
    assert figures.update_ratio == pytest.approx(5e-4 / weights, rel=1e-3)
    assert figures.vanishing == []


def test_gradients_are_unscaled():
    inner = keras.optimizers.SGD(0.01)
    optimizer = keras.optimizers.LossScaleOptimizer(inner, initial_scale=256)
    model = models.regressor(keras.Model, {"optimizer": optimizer})
    norms = expected(model, models.X, models.Y)
    monitor = callbacks.GradientMonitor(interval_steps=1)
    one_step(model, monitor)
    total = np.linalg.norm(list(norms.values()))
    assert monitor.figures().gradient_norm == pytest.approx(total, rel=1e-5)


def test_rows_of_an_embedding_count_once():
    inputs = keras.Input((3,), dtype="int32")
    hidden = keras.layers.Embedding(7, 2, name="table")(inputs)
    outputs = keras.layers.Dense(1)(keras.layers.Flatten()(hidden))
    model = keras.Model(inputs, outputs)
    model.compile("sgd", "mse")
    x = np.array([[1, 1, 2], [1, 2, 2]], "int32")
    y = np.ones((2, 1), "float32")
    norms = expected(model, x, y)
    monitor = callbacks.GradientMonitor(interval_steps=1)
    one_step(model, monitor, x, y)
    for name, row in monitor.figures().by_variable().items():
        assert row["gradient_norm"] == pytest.approx(norms[name], rel=1e-5)


@pytest.mark.parametrize(
    ("cls", "per_call"), [(keras.Model, 3), (AccumModel, 1)]
)
def test_watching_changes_nothing(cls, per_call):
    def trained(*extra):
        keras.utils.set_random_seed(0)
        model = models.regressor(cls, {"steps_per_execution": per_call})
        models.fit(model, callbacks=list(extra))
        return model.get_weights()

    watched = trained(callbacks.GradientMonitor(interval_steps=2))
    for a, b in zip(watched, trained(), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)


def test_every_nth_update_is_looked_at():
    model = models.regressor(AccumModel)
    monitor = callbacks.GradientMonitor(interval_steps=4)
    models.fit(model, epochs=3, callbacks=[monitor])
    # Updates 0, 4 and 8 of 9.
    assert monitor._look.read()[0] == 3
    models.fit(model, epochs=1, callbacks=[monitor])
    assert monitor._look.read()[0] == 3


def test_values_go_to_the_metrics_and_guard_goes_away():
    model = models.regressor(keras.Model)
    capture = Capture()
    monitor = callbacks.GradientMonitor(interval_steps=1)
    models.fit(model, callbacks=[monitor, capture])
    norm = monitor.figures().gradient_norm
    assert capture.value("gradient_norm") == pytest.approx(norm)
    assert capture.value("gradient_vanishing_ratio") == 0
    assert capture.value("update_ratio") > 0
    assert "make_train_function" not in vars(model)
    assert model.train_function is None


def test_it_works_beside_non_finite_rollback(tmp_path):
    model = models.regressor(keras.Model)
    y = models.Y.copy()
    y[12] = np.nan
    rollback = callbacks.NonFiniteRollback(report_path=tmp_path / "bad.json")
    monitor = callbacks.GradientMonitor(interval_steps=1)
    models.fit(model, y=y, callbacks=[monitor, rollback])
    assert len(rollback.events) == 2
    assert monitor._look.read()[0] == 2 * (BATCHES - 1)
    assert np.isfinite(monitor.figures().gradient_norm)


def test_dead_units_and_vanishing_gradients_are_told(caplog):
    inputs = keras.Input((4,))
    hidden = keras.layers.Dense(4, activation="relu", name="half")(inputs)
    outputs = keras.layers.Dense(1, name="last")(hidden)
    model = models.compiled(AccumModel(inputs, outputs), optimizer="adam")
    kernel, bias = model.get_layer("half").weights
    bias.assign([-1e3, -1e3, 9.0, 9.0])
    monitor = callbacks.GradientMonitor(interval_steps=1)
    models.fit(model, callbacks=[monitor])
    figures = monitor.figures()
    half = figures.by_variable()[kernel.path]
    assert half["dead_unit_ratio"] == 0.5
    assert figures.with_dead_units == [kernel.path]
    said = [m for m in caplog.messages if "dead units" in m]
    assert len(said) == 1 and kernel.path in said[0]

    bias.assign([-1e3] * 4)
    models.fit(model, callbacks=[monitor])
    assert set(monitor.figures().vanishing) >= {kernel.path}
    assert any("almost no gradient" in m for m in caplog.messages)


def test_model_that_is_built_by_its_first_batch():
    model = keras.Sequential([keras.layers.Dense(3), keras.layers.Dense(1)])
    models.compiled(model)
    monitor = callbacks.GradientMonitor(interval_steps=1)
    models.fit(model, callbacks=[monitor])
    assert len(monitor.figures().by_variable()) == 4


def test_own_step_is_refused():
    class OwnStep(keras.Model):
        def train_step(self, data):
            return super().train_step(data)

    model = models.regressor(OwnStep)
    with pytest.raises(ValueError, match="OwnStep.train_step"):
        models.fit(model, callbacks=[callbacks.GradientMonitor()])


def test_drift_of_weights_is_shown_and_told_once(caplog):
    inputs = keras.Input((4,))
    outputs = keras.layers.Dense(1)(keras.layers.Dense(50)(inputs))
    model = keras.Model(inputs, outputs)
    models.compiled(model, optimizer=keras.optimizers.SGD(0.0))
    kernel = model.trainable_variables[0]
    capture, monitor = Capture(), callbacks.GradientMonitor()
    models.fit(model, callbacks=[monitor, capture])
    # Biases begin with equal values, the last kernel has only 50.
    assert monitor.weight_drift() == {kernel.path: 0.0}
    assert not caplog.messages

    move = models.AtBatch(1, lambda model: kernel.assign(kernel + 10.0))
    models.fit(model, callbacks=[monitor, capture, move])
    # Of ten bins of 20 each, nine are empty and one has all.
    expected = 9 * (0.1 - 1e-4) * np.log(0.1 / 1e-4) + 0.9 * np.log(10)
    drift = monitor.weight_drift()
    assert drift == {kernel.path: pytest.approx(expected)}
    details = {d.tag: d for d in capture.of_kind(Detail)}
    shown = details[f"optimizer/weight_drift/{kernel.path}"]
    assert shown.value == pytest.approx(expected)
    assert shown.updates == 4 * BATCHES
    said = [m for m in caplog.messages if "moved far" in m]
    assert len(said) == 1 and kernel.path in said[0]


def test_last_look_at_layers_is_shown_too():
    capture = Capture()
    monitor = callbacks.GradientMonitor(interval_steps=1)
    models.fit(models.regressor(AccumModel), callbacks=[monitor, capture])
    shown = {d.tag: d.value for d in capture.of_kind(Detail)}
    last = monitor.figures().details()
    assert shown == {tag: pytest.approx(value) for tag, value in last.items()}


@pytest.mark.parametrize("value", [0, -1.0])
def test_bad_drift_is_refused(value):
    with pytest.raises(ValueError, match="max_weight_drift"):
        callbacks.GradientMonitor(max_weight_drift=value)


@pytest.mark.parametrize("value", [0, None, 1.5])
def test_bad_interval_is_refused(value):
    with pytest.raises(ValueError, match="interval_steps"):
        callbacks.GradientMonitor(interval_steps=value)
