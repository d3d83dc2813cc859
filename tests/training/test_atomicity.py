"""A step that fails changes nothing, and the same batch can be fed again."""

import time

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_tfopt import AccumModel
from tests import builders
from tests.equivalence import assert_same
from tests.equivalence import run
from tests.equivalence import state_of
from tests.equivalence import unchanged

ROWS = 8
FAILURES = 20
X, Y = builders.regression_data(ROWS)
ERRORS = (tf.errors.ResourceExhaustedError, tf.errors.InvalidArgumentError)
SETTINGS = {
    "whole": {},
    "split": {"accumulation_steps": 4},
    "gathered": {"gather_steps": 2, "microbatch_size": 2},
}
MICROBATCHES = {"whole": 1, "split": 4, "gathered": 4}


class FaultyMetric(keras.metrics.Mean):
    """A mean whose update can fail."""

    def __init__(self, fault):
        super().__init__(name="faulty")
        self.fault = fault

    def update_state(self, y_true, y_pred, sample_weight=None):
        values = builders.through_python(self.fault, y_pred - y_true)
        return super().update_state(values)


class Faults:
    """One fault for each part of a step."""

    PLACES = ("forward", "backward", "metric")

    def __init__(self):
        self.forward = builders.Fault(MemoryError)
        self.backward = builders.Fault(ValueError)
        self.metric = builders.Fault(MemoryError)


def _optimizer():
    return keras.optimizers.AdamW(0.01, use_ema=True, ema_momentum=0.9)


def _builder(faults, optimizer=_optimizer, dtype="float32", layers=()):
    def make_model(cls, **settings):
        stateful = [
            keras.layers.Dense(6, dtype=dtype),
            keras.layers.BatchNormalization(dtype=dtype),
            keras.layers.Dropout(0.5, dtype=dtype),
            builders.Probe(faults.forward, faults.backward, dtype=dtype),
        ]
        return builders.stack(
            cls,
            [*layers, *stateful],
            optimizer=optimizer(),
            metrics=["mae", FaultyMetric(faults.metric)],
            **settings,
        )

    return make_model


def _feed(model, x=X, y=Y):
    """Delivers what makes one update."""
    count = getattr(model, "gather_steps", None) or 1
    if count == 1:
        model.reset_metrics()  # Not every Keras does.
        model.train_on_batch(x, y)
    else:
        model.fit(x, y, batch_size=len(x) // count, shuffle=False, verbose=0)


def _fail(model, fault, call):
    fault.arm(call)
    with pytest.raises(ERRORS):
        _feed(model)
    fault.disarm()


def _fail_often(model, faults, max_call=1):
    # Keras begins with this; a metric that was updated since will show.
    model.reset_metrics()
    with unchanged(model):
        for index in range(FAILURES):
            place = Faults.PLACES[index % len(Faults.PLACES)]
            _fail(model, getattr(faults, place), 1 + index % max_call)


@pytest.mark.parametrize("name", SETTINGS)
def test_failures_change_nothing_and_batch_can_be_fed_again(name):
    def train(model):
        for _ in range(3):
            _feed(model)

    def train_with_failures(model):
        _feed(model)
        _fail_often(model, faults, MICROBATCHES[name])
        _feed(model)
        _feed(model)

    faults = Faults()
    settings = SETTINGS[name]
    expected = run(_builder(faults), train, AccumModel, **settings)
    actual = run(_builder(faults), train_with_failures, AccumModel, **settings)
    assert_same(actual, expected, tolerance=0)


@pytest.mark.parametrize("place", Faults.PLACES)
def test_same_failure_changes_stock_keras(place):
    faults = Faults()
    model = _builder(faults)(keras.Model)
    _feed(model)
    model.reset_metrics()
    with pytest.raises(AssertionError):
        with unchanged(model):
            _fail(model, getattr(faults, place), 1)


@pytest.mark.parametrize("settings", [{}, {"accumulation_steps": 4}], ids=str)
def test_failure_keeps_the_loss_scale(settings):
    def optimizer():
        inner = keras.optimizers.SGD(0.01, momentum=0.9)
        return keras.optimizers.LossScaleOptimizer(
            inner, initial_scale=64.0, dynamic_growth_steps=2
        )

    faults = Faults()
    model = _builder(faults, optimizer, "mixed_float16")(AccumModel, **settings)
    _feed(model)
    assert int(model.optimizer.step_counter) == 1
    _fail_often(model, faults)
    scale = float(model.optimizer.dynamic_scale)
    _feed(model)
    assert float(model.optimizer.dynamic_scale) == 2 * scale


class RawState(keras.layers.Layer):
    """Writes variables of TensorFlow in its forward pass."""

    def __init__(self):
        super().__init__()
        self.raw = tf.Variable(1.0, trainable=False)
        self.generator = tf.random.Generator.from_seed(1)

    def call(self, inputs):
        noise = self.generator.normal(tf.shape(inputs))
        return inputs * self.raw.assign_add(1.0) + noise


def test_failure_puts_back_what_was_written_past_keras():
    faults = Faults()
    layer = RawState()
    model = _builder(faults, layers=[layer])(AccumModel)
    _feed(model)
    before = layer.raw.numpy(), layer.generator.state.numpy()
    assert before[0] == 2
    _fail_often(model, faults)
    assert layer.raw.numpy() == before[0]
    np.testing.assert_array_equal(layer.generator.state.numpy(), before[1])
    _feed(model)
    assert layer.raw.numpy() == 3


class Checked(keras.layers.Layer):
    """Checks its inputs, late, in an operation that nothing depends on."""

    def call(self, inputs):
        largest = tf.reduce_max(inputs)
        late = builders.through_python(lambda array: time.sleep(0.1), largest)
        tf.debugging.assert_less(late, 100.0)
        return inputs


@pytest.mark.parametrize("name", ["whole", "split"])
def test_failed_assertion_changes_nothing(name):
    make_model = _builder(Faults(), layers=[Checked()])
    model = make_model(AccumModel, **SETTINGS[name])
    _feed(model)
    poisoned = X.copy()
    poisoned[-1] = 1000.0
    model.reset_metrics()
    with unchanged(model):
        for _ in range(3):
            with pytest.raises(tf.errors.InvalidArgumentError):
                _feed(model, poisoned)


class FailLater(keras.callbacks.Callback):
    """Arms a fault after two deliveries, and keeps the state of the last."""

    def __init__(self, fault):
        super().__init__()
        self.fault = fault

    def on_train_batch_end(self, batch, logs=None):
        self.state = state_of(self.model)
        if batch == 1:
            self.fault.arm()


@pytest.mark.parametrize("name", SETTINGS)
def test_failure_in_fit_leaves_the_step_before_it(name):
    faults = Faults()
    model = _builder(faults)(AccumModel, **SETTINGS[name])
    later = FailLater(faults.backward)
    options = {"batch_size": 2, "shuffle": False, "verbose": 0}
    with pytest.raises(ERRORS):
        model.fit(X, Y, callbacks=[later], **options)
    assert int(model.optimizer.iterations) == (1 if name == "gathered" else 2)
    after = state_of(model)
    for path, value in later.state.items():
        np.testing.assert_array_equal(after[path], value, err_msg=path)
    faults.backward.disarm()
    model.fit(X, Y, **options)
    assert int(model.optimizer.iterations) == (3 if name == "gathered" else 6)
