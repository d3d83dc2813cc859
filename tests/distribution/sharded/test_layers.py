"""Layers in pieces: what they compute, save, convert and refuse."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_tfopt import AccumModel
from keras_tfopt import distribution
from keras_tfopt.distribution.mesh import parse_devices
from tests.distribution.sharded import networks

X = np.random.default_rng(0).normal(size=(5, 3, 8)).astype("float32")


def seeded(make):
    """Makes something from a fixed seed."""
    keras.utils.set_random_seed(0)
    return make()


def perceptron(up, down):
    return keras.Sequential([keras.Input((3, 8)), up, down])


class Block(keras.layers.Layer):
    """Has no `build`, so that Keras builds it by a symbolic call."""

    def __init__(self, devices, **kwargs):
        super().__init__(**kwargs)
        self.up = distribution.ColumnParallelDense(
            6, devices, activation="tanh", gather_output=False
        )
        self.down = distribution.RowParallelDense(8, devices)

    def call(self, inputs):
        return self.down(self.up(inputs))


class Penalty(keras.layers.Layer):
    def call(self, inputs):
        self.add_loss(keras.ops.sum(inputs))
        return inputs


@pytest.mark.parametrize("devices", [networks.FOUR, networks.MESH], ids=str)
def test_initial_weights_and_outputs(devices):
    dense = keras.layers.Dense
    expected = seeded(lambda: perceptron(dense(6, "tanh"), dense(8)))
    block = seeded(lambda: Block(devices))
    np.testing.assert_allclose(block(X), expected(X), rtol=0, atol=1e-6)
    for layer in (block.up, block.down):
        for column, pieces in enumerate(layer._sharded["kernel"].pieces):
            for row, piece in enumerate(pieces):
                device = parse_devices(devices).rows[row][column]
                assert piece.value.device.endswith(device)
    # A tensor that is whole is divided.
    row = seeded(lambda: distribution.RowParallelDense(6, devices))
    first = seeded(lambda: dense(6))
    np.testing.assert_allclose(row(X), first(X), rtol=0, atol=1e-6)


@pytest.mark.parametrize("devices", [networks.TWO, networks.MESH], ids=str)
def test_attention(devices):
    stock = keras.layers.MultiHeadAttention(4, 2, value_dim=3)
    heads = distribution.ParallelMultiHeadAttention(4, 2, devices, value_dim=3)
    for layer in (stock, heads):
        layer.build(X.shape, X.shape)
    heads.set_whole_weights(stock.get_weights())
    mask = np.tril(np.ones((3, 3), bool))[None]
    for layers_inputs in ((X, X), (X, X[:, ::-1], X[:, :, ::-1])):
        arguments = [tf.constant(one) for one in layers_inputs]
        for attention_mask in (None, mask):
            outputs = [
                layer(*arguments, attention_mask=attention_mask)
                for layer in (heads, stock)
            ]
            np.testing.assert_allclose(*outputs, rtol=0, atol=1e-6)


def test_mixed_precision():
    devices = networks.MESH
    layer = distribution.ColumnParallelDense(6, devices, dtype="mixed_bfloat16")
    with tf.GradientTape() as tape:
        outputs = layer(X)
        loss = tf.reduce_sum(tf.cast(outputs, tf.float32))
    gradients = tape.gradient(loss, layer.trainable_variables)
    assert outputs.dtype == tf.bfloat16
    assert {gradient.dtype for gradient in gradients} == {tf.float32}


def test_files_do_not_depend_on_devices(tmp_path):
    model = distribution.shard(
        networks.transformer(AccumModel, microbatch_size=4),
        networks.LAYOUT,
        networks.MESH,
    )
    expected = model.predict(networks.TOKENS, verbose=0)
    model.save(tmp_path / "whole.keras")
    loaded = keras.models.load_model(tmp_path / "whole.keras")
    assert loaded.plan.microbatch_size == 4
    model.save_weights(tmp_path / "model.weights.h5")
    other = distribution.shard(
        networks.transformer(), networks.LAYOUT, networks.TWO
    )
    # A file has the slots of a compiled model, which belong to its pieces.
    other = keras.models.clone_model(keras.Model(other.inputs, other.outputs))
    for layer in other.layers:
        layer.set_weights([0 * weight for weight in layer.get_weights()])
    other.load_weights(tmp_path / "model.weights.h5")
    plain = distribution.unshard(model)
    assert type(plain.get_layer("up")) is keras.layers.Dense
    for made in (loaded, other, plain):
        actual = made.predict(networks.TOKENS, verbose=0)
        np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-6)


def test_pairs_are_not_gathered():
    model = distribution.shard(
        networks.transformer(), networks.LAYOUT, networks.FOUR
    )
    assert not [
        layer
        for layer in model.layers
        if isinstance(layer, distribution.GatherShards)
    ]


def test_layouts_that_do_not_fit():
    orthogonal = keras.regularizers.OrthogonalRegularizer()
    model = perceptron(
        keras.layers.Dense(4, "softmax", name="up"),
        keras.layers.Dense(3, kernel_regularizer=orthogonal, name="down"),
    )
    for layout, devices, message in [
        ({"top": "row"}, networks.TWO, "'top'.*no layer"),
        ({"up": "heads"}, networks.TWO, "Expected: MultiHeadAttention"),
        ({"up": "column"}, networks.TWO, "activation='softmax'"),
        ({"up": "CPU:7"}, networks.TWO, "CPU:7 do not"),
        ({"down": "row"}, networks.TWO, "OrthogonalRegularizer"),
        ({"down": "row"}, ["CPU:0", "CPU:0"], "each device once"),
        ({"down": "row"}, [["CPU:0"], []], "same length"),
    ]:
        with pytest.raises(ValueError, match=message):
            distribution.shard(model, layout, devices)
    narrow = distribution.ColumnParallelDense(3, networks.FOUR)
    with pytest.raises(ValueError, match="at least 4"):
        narrow(X)


def test_what_a_model_on_several_devices_refuses():
    inputs = keras.Input((8,))
    layer = distribution.ColumnParallelDense(4, networks.TWO)
    model = AccumModel(inputs, layer(inputs))
    for optimizer in (keras.optimizers.Adam(clipnorm=1.0), "adafactor"):
        with pytest.raises(ValueError, match="norms or factors"):
            model.compile(optimizer, "mse")
    with pytest.warns(UserWarning, match="doesn't support `jit_compile"):
        model.compile("adam", "mse", jit_compile=True)
    strategy = tf.distribute.MirroredStrategy(networks.TWO)
    with strategy.scope(), pytest.raises(ValueError, match="rows"):
        distribution.ColumnParallelDense(4, networks.TWO)
    for layer in (keras.layers.ActivityRegularization(0.1), Penalty()):
        with pytest.raises(ValueError, match="adds losses"):
            distribution.OnDevice(layer, "CPU:1")(X)
