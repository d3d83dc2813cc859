"""Half precision: one loss scale, one check, sums in float32."""

import keras
import numpy as np
import pytest

from keras_tfopt import AccumModel
from tests.accumulation.branches import CLASSES
from tests.accumulation.branches import ROWS
from tests.accumulation.branches import classes
from tests.accumulation.branches import normal
from tests.accumulation.branches import trainer
from tests.equivalence import assert_equal_training

X = normal(ROWS, 4)
Y = classes(ROWS)


def _builder(policy, make_optimizer):
    def make_model(cls, **settings):
        dtype = keras.DTypePolicy(policy)
        inputs = keras.Input((4,))
        hidden = keras.layers.Dense(8, activation="tanh", dtype=dtype)(inputs)
        outputs = keras.layers.Dense(CLASSES, dtype=dtype)(hidden)
        model = cls(inputs, outputs, **settings)
        model.compile(
            make_optimizer(),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )
        return model

    return make_model


def _scaled(**kwargs):
    return lambda: keras.optimizers.LossScaleOptimizer(
        keras.optimizers.SGD(0.1, momentum=0.9), **kwargs
    )


def _scale(model):
    optimizer = model.optimizer
    return float(optimizer.dynamic_scale), int(optimizer.step_counter)


class _Scales(keras.callbacks.Callback):
    """Notes scale, counter and iterations after each batch."""

    def on_train_begin(self, logs=None):
        self.model.seen = []

    def on_train_batch_end(self, batch, logs=None):
        inner = self.model.optimizer.inner_optimizer
        self.model.seen.append((*_scale(self.model), int(inner.iterations)))


def _same_scales(make_optimizer, x=X, **settings):
    """Compares with stock, and returns what the scale went through."""
    models = []

    def fit(model):
        models.append(model)
        return trainer(x, Y, callbacks=[_Scales()])(model)

    make_model = _builder("mixed_float16", make_optimizer)
    # Values in float16 are rounded in other places.
    assert_equal_training(make_model, fit, tolerance=2e-3, **settings)
    stock, split = models
    assert split.seen == stock.seen
    return split.seen


def test_loss_scale_grows():
    seen = _same_scales(
        _scaled(initial_scale=2.0**8, dynamic_growth_steps=3),
        microbatch_size=4,
    )
    assert [scale for scale, *_ in seen] == [2.0**8, 2.0**8, 2.0**9, 2.0**9]
    assert [steps for *_, steps in seen] == [1, 2, 3, 4]


def test_overflow_skips_a_step():
    seen = _same_scales(_scaled(initial_scale=2.0**20), microbatch_size=4)
    scales = [scale for scale, *_ in seen]
    iterations = [steps for *_, steps in seen]
    # Too large for float16 until it has been halved, once per batch.
    assert scales[0] == 2.0**19
    assert iterations[0] == 0 and 0 < iterations[-1] < 4


def test_overflow_in_one_micro_batch_skips_the_step():
    # Row 5 is in the second micro-batch of the first batch.
    x = X.copy()
    x[5] = np.inf
    seen = _same_scales(_scaled(initial_scale=2.0**8), x, microbatch_size=4)
    scales = [scale for scale, *_ in seen]
    assert scales == [2.0**7, 2.0**7, 2.0**6, 2.0**6]
    assert [steps for *_, steps in seen] == [0, 1, 1, 2]


def test_mixed_bfloat16():
    make_model = _builder("mixed_bfloat16", lambda: keras.optimizers.SGD(0.1))
    assert_equal_training(
        make_model, trainer(X, Y), tolerance=1e-2, microbatch_size=4
    )


class Negated(keras.losses.Loss):
    """Its gradient is the number of rows."""

    def call(self, y_true, y_pred):
        return -keras.ops.mean(y_pred, axis=-1)


@pytest.mark.parametrize("microbatch_size", [1, 64])
def test_sums_of_bfloat16(microbatch_size):
    # A sum of ones stops growing at 256 in bfloat16.
    rows = 1024
    inputs = keras.Input((1,), dtype="bfloat16")
    dense = keras.layers.Dense(
        1, use_bias=False, kernel_initializer="zeros", dtype="bfloat16"
    )
    model = AccumModel(inputs, dense(inputs), microbatch_size=microbatch_size)
    model.compile(keras.optimizers.SGD(1.0), Negated(reduction="sum"))
    ones = np.ones((rows, 1))
    model.fit(ones, ones, batch_size=rows, verbose=0)
    assert model.weights[0].dtype == "bfloat16"
    assert float(model.weights[0][0, 0]) == rows
