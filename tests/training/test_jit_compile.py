"""XLA compiles the pure step, and changes nothing else."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_tfopt import AccumModel
from tests import builders
from tests import models
from tests.equivalence import assert_equal_training
from tests.equivalence import run


@pytest.mark.parametrize(
    "settings", [{}, {"microbatch_size": 4}, {"accumulation_steps": 3}], ids=str
)
@pytest.mark.parametrize("steps", [1, 2])
def test_equals_stock(settings, steps):
    compile_with = {"jit_compile": True, "steps_per_execution": steps}
    outcome = assert_equal_training(
        lambda cls, **s: models.regressor(cls, compile_with, **s),
        models.fit,
        **settings,
    )
    assert outcome.model.plan.jit_compile


def test_sparse_gradients_and_masks():
    random = np.random.default_rng(0)
    words = random.integers(0, 7, size=(models.ROWS, 3))
    classes = random.integers(0, 2, size=(models.ROWS, 3))

    def make(cls, **settings):
        inputs = keras.Input((3,), dtype="int32")
        outputs = keras.layers.Embedding(7, 4, mask_zero=True)(inputs)
        model = cls(inputs, keras.layers.Dense(2)(outputs), **settings)
        model.compile(
            "sgd",
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            jit_compile=True,
        )
        return model

    assert_equal_training(
        make,
        lambda model: models.fit(model, words, classes),
        microbatch_size=4,
    )


def test_the_pure_step_is_compiled():
    # What XLA cannot compile proves that it was asked.
    inputs = keras.Input((4,))
    outputs = builders.Probe(lambda array: None)(inputs)
    outputs = keras.layers.Dense(1)(outputs)
    model = AccumModel(inputs, outputs, microbatch_size=4)
    models.compiled(model, jit_compile=True)
    model.optimizer.build(model.trainable_variables)
    weights = model.get_weights()
    with pytest.raises(tf.errors.InvalidArgumentError, match="XLA"):
        model.train_on_batch(models.X, models.Y)
    for value, before in zip(model.get_weights(), weights, strict=True):
        np.testing.assert_array_equal(value, before)
    assert int(model.optimizer.iterations) == 0


def test_gathered_batches_say_that_they_are_not_compiled():
    model = models.regressor(AccumModel, {"jit_compile": True}, gather_steps=2)
    with pytest.warns(UserWarning, match="gather_steps.*without XLA"):
        models.fit(model, epochs=1)


@pytest.mark.filterwarnings("ignore:.*past Keras")
def test_a_model_that_writes_past_keras_is_not_compiled():
    class Counter(keras.layers.Layer):
        def build(self, input_shape):
            self.count = tf.Variable(0)

        def call(self, inputs):
            self.count.assign_add(1)
            return inputs

    def make(cls, **settings):
        inputs = keras.Input((4,))
        layer = Counter()
        model = cls(inputs, keras.layers.Dense(1)(layer(inputs)), **settings)
        return models.compiled(model, jit_compile=True)

    with pytest.warns(UserWarning, match="runs without XLA"):
        outcome = run(make, models.fit, AccumModel)
    assert int(outcome.model.layers[1].count) == 6
