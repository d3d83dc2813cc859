"""Layers to compute again are chosen by what a trace shows them to keep."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_tfopt import AccumModel
from keras_tfopt import apply_remat
from keras_tfopt import remove_remat
from keras_tfopt.memory.segmentation import lowest_peak
from keras_tfopt.training.activation_profile import profile_activations
from keras_tfopt.training.remat import lowest_remat
from tests import models

ROWS, WIDTH = 64, 16
BATCH = (np.ones((ROWS, 4), "float32"), np.ones((ROWS, 1), "float32"))
SIZE = 4 * ROWS * WIDTH


def chain(cls=keras.Model, depth=6, **settings):
    inputs = outputs = keras.Input((4,))
    for index in range(depth):
        outputs = keras.layers.Dense(
            WIDTH, activation="tanh", name=f"dense_{index}"
        )(outputs)
    outputs = keras.layers.Dense(1, name="head")(outputs)
    return models.compiled(cls(inputs, outputs, **settings))


@pytest.fixture
def model():
    return chain()


def test_each_layer_keeps_its_activations(model):
    profile = profile_activations(model, BATCH)
    assert profile.names == (*(f"dense_{i}" for i in range(6)), "head")
    assert [profile.kept(i, i + 1) for i in range(6)] == [SIZE] * 6
    assert profile.held(1, 3) == SIZE
    # A product of 16 x 16 costs more than one of 4 x 16.
    assert profile.costs[1] > profile.costs[0]


def test_branches_and_reshapes_are_followed():
    inputs = keras.Input((4,))
    first = keras.layers.Dense(WIDTH, activation="tanh")(inputs)
    shaped = keras.layers.Reshape((4, 4))(first)
    second = keras.layers.Dense(4, activation="tanh")(shaped)
    outputs = keras.layers.Add()([shaped, second])
    outputs = keras.layers.Dense(1)(keras.layers.Flatten()(outputs))
    model = models.compiled(keras.Model(inputs, outputs))
    profile = profile_activations(model, BATCH)
    # The first result goes past the second call, under another name.
    assert profile.held(0, 1) == SIZE
    assert profile.held(0, 3) == 2 * SIZE
    assert profile.kept(1, 2) == 0


class Noise(keras.layers.Layer):
    def call(self, inputs):
        return inputs + tf.random.normal(tf.shape(inputs))


def test_what_draws_hidden_numbers_is_left_alone():
    inputs = outputs = keras.Input((4,))
    for index in range(6):
        outputs = keras.layers.Dense(WIDTH, activation="tanh")(outputs)
        if index == 2:
            outputs = Noise(name="noise")(outputs)
    model = models.compiled(keras.Model(inputs, keras.layers.Dense(1)(outputs)))
    assert profile_activations(model, BATCH).fixed == {3}
    apply_remat(model, budget=0, batch=BATCH)
    models.fit(model, epochs=1)
    apply_remat(model, every=2)
    with pytest.raises(ValueError, match="noise.*hidden generator"):
        models.fit(model, epochs=1)


def test_profiling_leaves_no_trace(model):
    profile_activations(model, BATCH)
    assert "_run_through_graph" not in vars(model)
    models.fit(model, epochs=1)


def test_a_budget_is_kept(model):
    profile = profile_activations(model, BATCH)
    full = profile.peak([])
    found = apply_remat(model, budget=full // 2, batch=BATCH)
    names = list(profile.names)
    spans = [(names.index(a), names.index(b) + 1) for a, b in found]
    assert profile.peak(spans) <= full // 2
    assert apply_remat(model, budget=full, batch=BATCH) is None
    lowest = apply_remat(model, budget=0, batch=BATCH)
    assert lowest == lowest_remat(model, BATCH)
    assert len(lowest) == len(lowest_peak(profile))
    with pytest.raises(ValueError, match="budget=100. Expected: at least"):
        apply_remat(model, budget=100, batch=BATCH)


def test_large_layers_are_chosen():
    model = chain(depth=3)
    found = apply_remat(model, larger_than=SIZE - 1, batch=BATCH)
    assert found == tuple((f"dense_{i}", f"dense_{i}") for i in range(3))
    assert apply_remat(model, larger_than=SIZE, batch=BATCH) is None


def test_a_plan_takes_it_where_there_is_one():
    model = chain(AccumModel, microbatch_size=8)
    assert apply_remat(model, every=2) == 2
    assert model.plan.remat == 2
    assert model.plan_events[-1].reason == "apply_remat"
    assert "_run_through_graph" not in vars(model)
    remove_remat(model)
    assert model.plan.remat is None


def test_any_other_model_is_changed_in_place(model):
    found = apply_remat(model, names=["dense_1", ["dense_3", "head"]])
    assert found == ("dense_1", ("dense_3", "head"))
    assert "call" in vars(model.get_layer("dense_1"))
    assert "_run_through_graph" in vars(model)
    remove_remat(model)
    assert "call" not in vars(model.get_layer("dense_1"))


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1)

    def call(self, inputs):
        return self.dense(inputs)


def test_a_subclassed_model_has_no_segments():
    model = models.compiled(Subclassed())
    with pytest.raises(ValueError, match="every=1"):
        apply_remat(model, budget=0, batch=BATCH)
    assert lowest_remat(model, BATCH) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "none of them"),
        ({"every": 2, "names": ["dense_1"]}, "exclude each other"),
        ({"every": 0}, "`every`"),
        ({"names": []}, "`remat`"),
        ({"names": ["nowhere"]}, "nowhere"),
        ({"budget": -1, "batch": BATCH}, "budget=-1"),
        ({"larger_than": 2.5, "batch": BATCH}, "larger_than=2.5"),
        ({"budget": 100}, "without a batch"),
    ],
    ids=str,
)
def test_unclear_choices_are_refused(model, arguments, message):
    with pytest.raises(ValueError, match=message):
        apply_remat(model, **arguments)
