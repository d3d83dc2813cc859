"""A transformer block as one writes it for one device, and its data."""

import keras
import numpy as np

from tests import models

TWO = ["CPU:0", "CPU:1"]
FOUR = ["CPU:0", "CPU:1", "CPU:2", "CPU:3"]
# Two parts of each batch on two devices each.
MESH = [["CPU:0", "CPU:1"], ["CPU:2", "CPU:3"]]
LAYOUT = {"*attention": "heads", "up": "column", "down": "row"}

_RNG = np.random.default_rng(0)
# Padding of different lengths, for masks.
_IS_TOKEN = np.arange(6) < 6 - np.arange(26)[:, None] % 4
TOKENS = _RNG.integers(1, 7, (26, 6)) * _IS_TOKEN
LABELS = _RNG.integers(0, 7, (26, 6))


def transformer(cls=keras.Model, optimizer=None, **settings):
    """Returns a compiled causal transformer block of `TOKENS` and `LABELS`."""
    layers = keras.layers
    inputs = keras.Input((6,), dtype="int32")
    x = layers.Embedding(7, 8, mask_zero=True, name="embedding")(inputs)
    attention = layers.MultiHeadAttention(4, 2, name="self_attention")
    x = layers.Add()([x, attention(x, x, use_causal_mask=True)])
    x = layers.LayerNormalization(name="norm")(x)
    hidden = layers.Dense(12, activation="gelu", name="up")(x)
    x = layers.Add()([x, layers.Dense(8, name="down")(hidden)])
    outputs = layers.Dense(7, name="vocabulary")(x)
    return models.compiled(
        cls(inputs, outputs, **settings),
        optimizer=optimizer or keras.optimizers.Adam(0.01, global_clipnorm=0.5),
        loss=keras.losses.SparseCategoricalCrossentropy(True),
        weighted_metrics=["accuracy"],
    )


def fit(model):
    """Trains in batches that no number of devices divides."""
    return models.fit(model, TOKENS, LABELS, batch_size=9, epochs=1)
