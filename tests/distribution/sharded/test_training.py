"""Training in pieces on several devices equals training on one."""

import collections
import functools

import keras
import numpy as np
import pytest

from keras_tfopt import AccumModel
from keras_tfopt import callbacks
from keras_tfopt import distribution
from tests import models
from tests.distribution.sharded import networks
from tests.equivalence import run

LAYOUT = networks.LAYOUT | {"vocabulary": "column"}
PLACES = {
    "embedding": "CPU:0",
    "self_attention": "CPU:1",
    "norm": "CPU:2",
    "up": "CPU:2",
    "down": "CPU:3",
    "vocabulary": "CPU:3",
}


@functools.cache
def on_one_device():
    """Returns the outcome of stock Keras."""
    return run(networks.transformer, networks.fit)


def train(layout, devices, settings):
    """Trains a sharded model of the same initial weights."""

    def make():
        model = distribution.shard(networks.transformer(), layout, devices)
        if settings:
            config = model.get_compile_config()
            model = AccumModel.from_model(model, **settings)
            model.compile_from_config(config)
        return model

    return run(make, networks.fit)


def assert_equals_one_device(actual):
    expected = on_one_device()
    for key, values in expected.history.items():
        np.testing.assert_allclose(actual.history[key], values, 1e-6, 1e-6)
    assert_equal_weights(actual.model, expected.model)
    assert actual.model.optimizer.iterations.numpy() == 3


def bytes_by_device(variables):
    """Returns how many bytes of variables are on each device."""
    found = collections.Counter()
    for variable in variables:
        value = variable.value
        device = value.device.rpartition("device:")[-1]
        found[device] += value.dtype.size * int(np.prod(value.shape))
    return found


def assert_runs_on(model, devices):
    """Asserts that all matrix products of a step say where they run."""
    (function,) = model.train_function._functions._functions.values()
    graph = function.graph.as_graph_def()
    nodes = [*graph.node]
    for called in graph.library.function:
        nodes += called.node_def
    products = collections.Counter(
        node.device.rpartition("device:")[-1]
        for node in nodes
        if node.op in ("BatchMatMulV2", "Einsum", "MatMul")
    )
    assert products.keys() == {*devices}


@pytest.mark.parametrize(
    ("devices", "settings"),
    [
        (networks.TWO, {}),
        (networks.MESH, {"microbatch_size": 4}),
    ],
    ids=["two", "mesh_of_four_in_micro_batches"],
)
def test_transformer_block(devices, settings):
    actual = train(LAYOUT, devices, settings)
    assert_equals_one_device(actual)
    model = actual.model
    names = [name for row in np.atleast_2d(devices) for name in row]
    large = [v for v in model.trainable_variables if "kernel" in v.path]
    parameters = bytes_by_device(large)
    # The devices do not divide the vocabulary evenly.
    share = sum(parameters.values()) / len(names)
    assert parameters.keys() == {*names}
    assert max(parameters.values()) <= 1.1 * share
    slots = [v for v in model.optimizer.variables if "kernel" in v.path]
    assert bytes_by_device(slots) == {
        name: 2 * size for name, size in parameters.items()
    }
    if settings:
        assert_runs_on(model, names)


def test_layers_on_devices_of_their_own():
    actual = train(PLACES, ["CPU:0"], {"microbatch_size": 4})
    assert_equals_one_device(actual)
    assert_runs_on(actual.model, ["CPU:1", "CPU:2", "CPU:3"])
    for layer in actual.model.layers:
        found = bytes_by_device(layer.variables)
        assert found.keys() <= {PLACES.get(layer.name)}


def state_keeping(cls=keras.Model):
    """Returns a model with statistics, masks of dropout and a regularizer."""
    inputs = keras.Input((4,))
    x = keras.layers.Dense(6, kernel_regularizer="l2", name="up")(inputs)
    x = keras.layers.BatchNormalization(name="norm")(x)
    x = keras.layers.Dropout(0.5, seed=1, name="dropout")(x)
    return models.compiled(cls(inputs, keras.layers.Dense(1, name="down")(x)))


@pytest.mark.parametrize("cls", [keras.Model, AccumModel])
def test_state_and_regularizers(cls):
    layout = {"up": "column", "[nd]*": "CPU:1"}
    expected = run(state_keeping, models.fit)

    def make():
        model = distribution.shard(state_keeping(cls), layout, networks.TWO)
        model.run_eagerly = cls is keras.Model
        return model

    actual = run(make, models.fit)
    np.testing.assert_allclose(
        actual.history["loss"], expected.history["loss"], 1e-6, 1e-6
    )
    plain = distribution.unshard(actual.model)
    for value, wanted in zip(
        plain.variables, expected.model.variables, strict=True
    ):
        np.testing.assert_allclose(value, wanted, rtol=0, atol=1e-6)


def on_four_devices():
    """Returns a compiled model of columns and rows, in micro-batches."""
    model = models.network(AccumModel, microbatch_size=4)
    layout = {"dense": "column", "dense_1": "row"}
    return distribution.shard(models.compiled(model), layout, networks.FOUR)


def assert_equal_weights(actual, expected):
    given = distribution.unshard(actual).get_weights()
    for value, wanted in zip(given, expected.get_weights(), strict=True):
        np.testing.assert_allclose(value, wanted, rtol=0, atol=1e-6)


def test_backups_of_micro_batches_on_four_devices(tmp_path):
    expected = run(models.regressor, models.fit, keras.Model)
    keras.utils.clear_session()
    keras.utils.set_random_seed(0)
    model = on_four_devices()
    assert model.plan.microbatch_size == 4
    ending = models.AtBatch(1, models.interrupt)
    with pytest.raises(models.Interruption):
        backup = callbacks.BackupAndRestore(tmp_path / "run", save_freq=1)
        models.fit(model, callbacks=[backup, ending])
    keras.utils.clear_session()
    # Other weights than those it began with.
    keras.utils.set_random_seed(1)
    model = on_four_devices()
    backup = callbacks.BackupAndRestore(tmp_path / "run", save_freq=1)
    models.fit(model, callbacks=[backup])
    assert_equal_weights(model, expected.model)
    assert model.optimizer.iterations.numpy() == 6
    assert_runs_on(model, networks.FOUR)
