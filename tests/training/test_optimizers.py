"""One optimizer update per batch, equal to stock Keras for each optimizer."""

import keras
import numpy as np
import pytest

from tests.equivalence import assert_equal_training

ROWS = 26
_RNG = np.random.default_rng(0)
X = _RNG.normal(size=(ROWS, 8)).astype("float32")
Y = _RNG.integers(0, 3, size=(ROWS,))


def _fit(model, **kwargs):
    return model.fit(
        X, Y, batch_size=10, epochs=2, shuffle=False, verbose=0, **kwargs
    )


def _builder(make_optimizer):
    def make_model(cls, **settings):
        inputs = keras.Input((8,))
        hidden = keras.layers.Dense(16, activation="tanh")(inputs)
        model = cls(inputs, keras.layers.Dense(3)(hidden), **settings)
        model.compile(
            make_optimizer(),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )
        return model

    return make_model


OPTIMIZERS = {
    "sgd": lambda: keras.optimizers.SGD(0.1),
    "momentum": lambda: keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True),
    "adam": lambda: keras.optimizers.Adam(0.01),
    "adamw": lambda: keras.optimizers.AdamW(0.01, weight_decay=0.1),
    "lion": lambda: keras.optimizers.Lion(0.01),
    "adafactor": lambda: keras.optimizers.Adafactor(0.01),
    "clipnorm": lambda: keras.optimizers.SGD(0.1, clipnorm=0.05),
    "clipvalue": lambda: keras.optimizers.SGD(0.1, clipvalue=0.01),
    "global_clipnorm": lambda: keras.optimizers.SGD(0.1, global_clipnorm=0.05),
    "ema": lambda: keras.optimizers.SGD(
        0.1, use_ema=True, ema_momentum=0.8, ema_overwrite_frequency=3
    ),
    "schedule": lambda: keras.optimizers.SGD(
        keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5)
    ),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize(
    "settings", [{"microbatch_size": 4}, {"accumulation_steps": 3}], ids=str
)
def test_equals_stock(name, settings):
    outcome = assert_equal_training(
        _builder(OPTIMIZERS[name]), _fit, **settings
    )
    assert int(outcome.model.optimizer.iterations) == 6
