"""What cannot be trained is refused with a way out, and changes nothing."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_tfopt import AccumMixin
from keras_tfopt import AccumModel
from tests.equivalence import unchanged
from tests.models import X
from tests.models import Y
from tests.models import compiled
from tests.models import fit
from tests.models import network
from tests.models import regressor
from tests.models import streamed

SETTINGS = ["accumulation_steps", "microbatch_size", "gather_steps"]


class Subclass(AccumModel):
    def call(self, inputs):
        return inputs


class Base(keras.Model):
    def call(self, inputs):
        return inputs


class Mixed(AccumMixin, Base):
    pass


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize(
    "value", [0, -2, 2.0, 0.5, True, False, "4", [2]], ids=repr
)
def test_settings_must_be_positive_integers(setting, value):
    for make in (Subclass, Mixed):
        with pytest.raises(ValueError) as error:
            make(**{setting: value})
        message = str(error.value)
        assert f"argument `{setting}`" in message
        assert f"Received: {setting}={value!r}" in message
        assert "Expected: an integer of at least 1, or None" in message


def test_a_functional_model_checks_its_settings():
    existing = network(keras.Model)
    for make in (
        lambda **settings: network(AccumModel, **settings),
        lambda **settings: AccumModel.from_model(existing, **settings),
    ):
        with pytest.raises(ValueError, match="microbatch_size=-1"):
            make(microbatch_size=-1)


def test_both_ways_of_splitting_exclude_each_other():
    with pytest.raises(ValueError, match="exclude") as error:
        Subclass(accumulation_steps=2, microbatch_size=3)
    message = str(error.value)
    assert "accumulation_steps=2, microbatch_size=3" in message
    assert "Expected: one of them" in message


@pytest.mark.parametrize("setting", SETTINGS)
def test_integers_of_numpy_are_integers(setting):
    model = compiled(network(AccumModel, **{setting: np.int64(2)}))
    model.train_on_batch(X[:5], Y[:5])
    assert int(model.optimizer.iterations) == 1


@pytest.mark.parametrize("run_eagerly", [False, True])
def test_rows_that_disagree(run_eagerly):
    model = regressor(
        AccumModel, {"run_eagerly": run_eagerly}, microbatch_size=2
    )
    model.train_on_batch(X[:5], Y[:5])
    model.reset_metrics()
    refused = streamed([(X[:5], Y[:4])])
    with unchanged(model):
        with pytest.raises(ValueError, match="disagree") as error:
            fit(model, refused, None)
        with pytest.raises(ValueError, match="disagree"):
            model.train_on_batch(X[:5], Y[:1])
    message = str(error.value)
    assert "Received: x: 5, y: 4" in message
    assert "Expected: the same number of rows everywhere" in message
    # And the model still trains.
    model.train_on_batch(X[:5], Y[:5])
    assert int(model.optimizer.iterations) == 2


def test_leaves_that_disagree_are_named():
    inputs = {name: keras.Input((4,), name=name) for name in ("one", "two")}
    outputs = keras.layers.Dense(1)(inputs["one"] + inputs["two"])
    model = compiled(AccumModel(inputs, outputs, accumulation_steps=2))
    with pytest.raises(ValueError) as error:
        model.train_on_batch({"one": X[:5], "two": X[:3]}, Y[:5], Y[:4, 0])
    assert "x['one']: 5, x['two']: 3, y: 5, sample_weight: 4" in str(
        error.value
    )


def test_a_batch_without_rows():
    class Scalar(AccumModel):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            self.weight = self.add_weight(shape=(), initializer="ones")

        def call(self, inputs):
            return self.weight * inputs

    model = Scalar(accumulation_steps=2)
    model.compile("sgd", "mse")
    data = tf.data.Dataset.from_tensors((1.0, 2.0))
    with pytest.raises(ValueError, match="no rows") as error:
        fit(model, data, None)
    message = str(error.value)
    assert "shape ()" in message
    assert "`accumulation_steps`" in message and "`microbatch_size`" in message


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("scaled", [False, True])
def test_accumulation_of_the_optimizer(setting, scaled):
    optimizer = keras.optimizers.SGD(gradient_accumulation_steps=3)
    if scaled:
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
    model = network(AccumModel, **{setting: 2})
    with pytest.raises(ValueError, match="accumulated twice") as error:
        compiled(model, optimizer=optimizer)
    message = str(error.value)
    assert "gradient_accumulation_steps=3" in message
    assert "`accumulation_steps`, `microbatch_size` or `gather_steps`" in (
        message
    )
    assert "Leave `gradient_accumulation_steps` unset" in message


def test_accumulation_of_the_optimizer_alone_is_that_of_keras():
    optimizer = keras.optimizers.SGD(gradient_accumulation_steps=3)
    compiled(network(AccumModel), optimizer=optimizer)


class OwnTrainStep(AccumModel):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.dense = keras.layers.Dense(1)

    def call(self, inputs):
        return self.dense(inputs)

    def train_step(self, data):
        return {**super().train_step(data), "own": 7.0}


@pytest.mark.parametrize("setting", SETTINGS)
def test_an_own_train_step_is_refused_when_compiled(setting):
    with pytest.raises(ValueError, match="own `train_step`") as error:
        compiled(OwnTrainStep(**{setting: 2}))
    message = str(error.value)
    assert "OwnTrainStep.train_step" in message
    assert "Expected: Keras' `train_step`" in message
    assert "Override `compute_loss`" in message


def test_an_own_train_step_runs_without_splitting():
    history = fit(compiled(OwnTrainStep())).history
    assert history["own"] == [7.0, 7.0]
    assert history["loss"][1] < history["loss"][0]
