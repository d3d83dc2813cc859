import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_tfopt import AccumModel

pytestmark = pytest.mark.gpu

DEVICE = "/GPU:0"


@pytest.fixture
def full_float32():
    """Lets convolutions and products keep all bits of float32."""
    is_enabled = tf.config.experimental.tensor_float_32_execution_enabled()
    tf.config.experimental.enable_tensor_float_32_execution(False)
    yield
    tf.config.experimental.enable_tensor_float_32_execution(is_enabled)


def train(model_class, **options):
    """Trains for two epochs with a short last batch."""
    keras.utils.set_random_seed(0)
    random = np.random.default_rng(0)
    x = random.normal(size=(150, 8, 8, 3)).astype("float32")
    y = random.integers(5, size=150)
    inputs = keras.Input(x.shape[1:])
    hidden = keras.layers.Conv2D(8, 3, activation="relu")(inputs)
    outputs = keras.layers.Dense(5)(keras.layers.Flatten()(hidden))
    model = model_class(inputs, outputs, **options)
    model.compile(
        optimizer=keras.optimizers.SGD(0.05, momentum=0.9),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    history = model.fit(x, y, batch_size=64, epochs=2, verbose=0)
    return model, history.history


def test_split_batches_train_like_whole_ones(full_float32):
    with tf.device(DEVICE):
        stock, stock_history = train(keras.Model)
        split, split_history = train(AccumModel, microbatch_size=16)

    assert int(split.optimizer.iterations) == 6
    assert int(stock.optimizer.iterations) == 6
    for actual, expected in zip(split.weights, stock.weights, strict=True):
        assert actual.value.device.endswith(DEVICE.removeprefix("/"))
        # Convolutions on GPUs add up in another order for other batch sizes.
        np.testing.assert_allclose(
            actual.numpy(), expected.numpy(), rtol=1e-5, atol=1e-5
        )
    for name, expected in stock_history.items():
        np.testing.assert_allclose(split_history[name], expected, rtol=1e-5)
