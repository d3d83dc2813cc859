"""An image classifier: a data pipeline, BatchNormalization and Dropout."""

import keras
from sklearn import datasets
import tensorflow as tf

from keras_tfopt import Optimization


def load(batch_size=128):
    """Returns datasets of handwritten digits for training and validation."""
    images, labels = datasets.load_digits(return_X_y=True)
    images = (images / 16).astype("float32").reshape(-1, 8, 8, 1)
    data = tf.data.Dataset.from_tensor_slices((images, labels))
    train = data.skip(360).shuffle(2048, seed=1).batch(batch_size)
    return train.prefetch(2), data.take(360).batch(batch_size)


def build():
    """Returns a small convolutional network."""
    layers = keras.layers
    model = keras.Sequential([keras.Input((8, 8, 1))])
    for filters in (16, 32):
        model.add(layers.Conv2D(filters, 3, padding="same", use_bias=False))
        model.add(layers.BatchNormalization())
        model.add(layers.Activation("relu"))
        model.add(layers.MaxPooling2D())
    model.add(layers.Flatten())
    model.add(layers.Dropout(0.3))
    model.add(layers.Dense(10))
    return model


def main(epochs=3):
    """Trains and returns the model and its history."""
    keras.utils.set_random_seed(0)
    train, validation = load()
    model = build()
    model.compile(
        optimizer=keras.optimizers.AdamW(3e-3),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    callbacks = [
        *Optimization.from_yaml("examples/stable.yml").callbacks(),
        keras.callbacks.ReduceLROnPlateau(patience=2),
        keras.callbacks.EarlyStopping(patience=5, restore_best_weights=True),
    ]
    history = model.fit(
        train,
        validation_data=validation,
        epochs=epochs,
        callbacks=callbacks,
        shuffle=False,
        verbose=2,
    )
    return model, history.history


if __name__ == "__main__":
    main()
