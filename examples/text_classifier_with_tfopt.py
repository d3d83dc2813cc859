"""A text classifier: masks, and classes that weigh differently."""

import ast
import collections
import inspect
import textwrap

import keras
import numpy as np

from keras_tfopt import AccumModel

MODULES = (ast, collections, textwrap)
LENGTH = 48


def load():
    """Returns lines of code as characters, and which module each is from."""
    lines, labels = [], []
    for label, module in enumerate(MODULES):
        for line in inspect.getsource(module).splitlines():
            if line.strip():
                lines.append([min(ord(letter), 127) for letter in line.strip()])
                labels.append(label)
    # Zeros at the end are masked.
    x = keras.utils.pad_sequences(lines, LENGTH, padding="post")
    y = np.array(labels)
    order = np.random.default_rng(0).permutation(len(y))[:1024]
    return x[order], y[order]


def build():
    """Returns a small recurrent network that masks what is padded."""
    inputs = keras.Input((LENGTH,), dtype="int32")
    x = keras.layers.Embedding(128, 16, mask_zero=True)(inputs)
    x = keras.layers.GRU(32)(x)
    outputs = keras.layers.Dense(len(MODULES), activation="softmax")(x)
    return AccumModel(inputs, outputs, microbatch_size=64)


def main(epochs=2):
    """Trains and returns the model and its history."""
    keras.utils.set_random_seed(0)
    x, y = load()
    counts = np.bincount(y)
    class_weight = dict(enumerate(len(y) / len(counts) / counts))
    model = build()
    model.compile(
        optimizer=keras.optimizers.SGD(0.1, momentum=0.9, clipnorm=1.0),
        loss="sparse_categorical_crossentropy",
        weighted_metrics=["accuracy"],
    )
    history = model.fit(
        x,
        y,
        batch_size=256,
        epochs=epochs,
        class_weight=class_weight,
        verbose=2,
    )
    return model, history.history


if __name__ == "__main__":
    main()
