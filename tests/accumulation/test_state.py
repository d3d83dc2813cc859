"""State that a forward pass writes: kept exactly, or named and refused."""

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_tfopt import AccumModel
from keras_tfopt import ExactnessWarning
from keras_tfopt import register_row_state
from tests import builders
from tests.equivalence import assert_same
from tests.equivalence import run
from tests.equivalence import unchanged


class OwnSeed(keras.layers.Layer):
    """Adds noise from its own seed generator."""

    def __init__(self):
        super().__init__()
        self.generator = keras.random.SeedGenerator(3)

    def call(self, inputs):
        shape = keras.ops.shape(inputs)
        return inputs + keras.random.normal(shape, seed=self.generator)


class GlobalSeed(keras.layers.Layer):
    """Adds noise from Keras' global seed generator."""

    def call(self, inputs):
        return inputs + keras.random.normal(keras.ops.shape(inputs))

    def observe(self):
        return keras.random.uniform((2,)).numpy()


class OwnCounter(keras.layers.Layer):
    """Counts its calls, and lets the count into the loss."""

    def build(self, input_shape):
        self.count = self.add_weight(
            shape=(), initializer="zeros", trainable=False, name="count"
        )

    def call(self, inputs):
        self.count.assign_add(1.0)
        return inputs * self.count


class HiddenVariable(keras.layers.Layer):
    """Keeps a variable where Keras does not look for it."""

    def build(self, input_shape):
        variable = keras.Variable(0.0, trainable=False, name="hidden")
        self.holder = lambda: variable

    def call(self, inputs):
        self.holder().assign_add(1.0)
        return inputs * self.holder()

    def observe(self):
        return self.holder().numpy()


class RawVariable(keras.layers.Layer):
    """Counts its calls in a variable of TensorFlow."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.raw = tf.Variable(0.0, trainable=False, name="raw")

    def call(self, inputs):
        return inputs * self.raw.assign_add(1.0)

    def observe(self):
        return self.raw.numpy()


class NestedRawVariable(RawVariable):
    """Writes a variable of TensorFlow in a branch of a loop's body."""

    def call(self, inputs):
        def write():
            return self.raw.assign_add(1.0)

        def body(index):
            tf.cond(index < 1, write, self.raw.read_value)
            return (index + 1,)

        tf.while_loop(lambda index: index < 2, body, (tf.constant(0),))
        return inputs * self.raw


class TensorFlowGenerator(keras.layers.Layer):
    """Adds noise from a generator of TensorFlow."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.generator = tf.random.Generator.from_seed(1)

    def call(self, inputs):
        return inputs + self.generator.normal(tf.shape(inputs))

    def observe(self):
        return self.generator.state.numpy()


class HiddenGenerator(keras.layers.Layer):
    """Adds noise from TensorFlow's hidden generator."""

    def call(self, inputs):
        return inputs + tf.random.normal(tf.shape(inputs), seed=7)


class PythonFunction(keras.layers.Layer):
    """Adds what a Python function returns."""

    def call(self, inputs):
        noise = tf.numpy_function(np.sin, [inputs], tf.float32)
        noise.set_shape(inputs.shape)
        return inputs + tf.stop_gradient(noise)


def _adapted(layer):
    layer.adapt(builders.regression_data()[0])
    return layer


def _stateful_lstm(cls, **settings):
    inputs = keras.Input(batch_shape=(4, 3, 2))
    layers = [keras.layers.LSTM(3, stateful=True, name="lstm")]
    return builders.stack(cls, layers, inputs, **settings)


def _float8(cls, **settings):
    layer = keras.layers.Dense(4)
    model = builders.stack(cls, [layer], **settings)
    layer.quantize("float8")
    model.compile("sgd", "mse")
    return model


def _lora(cls, **settings):
    layer = keras.layers.Dense(4)
    model = builders.stack(cls, [layer], **settings)
    layer.enable_lora(2)
    model.compile("sgd", "mse")
    return model


def _string_lookup(cls, **settings):
    lookup = keras.layers.StringLookup(vocabulary=["a", "b"])
    layers = [lookup, keras.layers.Embedding(3, 2)]
    inputs = keras.Input((5,), dtype="string")
    return builders.stack(cls, layers, inputs, **settings)


def _row(*make_layers):
    def make_model(cls, **settings):
        return builders.stack(cls, [make() for make in make_layers], **settings)

    return make_model


def _spectral():
    return keras.layers.SpectralNormalization(
        keras.layers.Dense(4, name="inner"), name="spectral"
    )


LAYERS = {
    "batch_normalization": keras.layers.BatchNormalization,
    "dropout": lambda: keras.layers.Dropout(0.5),
    "gaussian_noise": lambda: keras.layers.GaussianNoise(0.5),
    "own_seed": OwnSeed,
    "global_seed": GlobalSeed,
    "spectral_normalization": _spectral,
    "own_counter": OwnCounter,
    "hidden_variable": HiddenVariable,
    "raw_variable": RawVariable,
    "nested_raw_variable": NestedRawVariable,
    "tf_generator": TensorFlowGenerator,
    "hidden_generator": HiddenGenerator,
    "python_function": PythonFunction,
    "normalization": lambda: _adapted(keras.layers.Normalization()),
    "discretization": lambda: _adapted(keras.layers.Discretization(num_bins=3)),
}
MODELS = {name: _row(make) for name, make in LAYERS.items()} | {
    "stateful_lstm": _stateful_lstm,
    "string_lookup": _string_lookup,
    "float8": _float8,
    "lora": _lora,
}


def _data_for(model, rows=12):
    x, y = builders.regression_data(rows, model.inputs[0].shape[1:])
    if model.inputs[0].dtype == "string":
        x = tf.constant(np.where(x > 0.5, "a", np.where(x > 0, "b", "c")))
    return x, y


def _train(model):
    data = tf.data.Dataset.from_tensor_slices(_data_for(model))
    # A stateful RNN needs to know the number of rows.
    batches = data.batch(4, drop_remainder=True)
    model.fit(batches, epochs=2, shuffle=False, verbose=0)


def _observe(model):
    """Returns state that no list of the model holds."""
    return [
        layer.observe() for layer in model.layers if hasattr(layer, "observe")
    ] + [
        state.numpy()
        for layer in model.layers
        for state in getattr(layer, "states", None) or []
    ]


@pytest.mark.parametrize("name", MODELS)
def test_unsplit_equals_stock_bit_for_bit(name):
    expected = run(MODELS[name], _train, keras.Model)
    wanted = _observe(expected.model)
    actual = run(MODELS[name], _train, AccumModel)
    assert_same(actual, expected, tolerance=0)
    for value, other in zip(_observe(actual.model), wanted, strict=True):
        np.testing.assert_array_equal(value, other)


@pytest.mark.parametrize("name", ["normalization", "string_lookup", "lora"])
def test_split_equals_stock(name):
    expected = run(MODELS[name], _train, keras.Model)
    actual = run(MODELS[name], _train, AccumModel, microbatch_size=3)
    assert_same(actual, expected)


REFUSED = {
    "spectral_normalization": "'kernel' of layer 'inner'",
    "own_counter": r"'count' of layer '\w+' \(OwnCounter\).*register_row_state",
    "hidden_variable": "variable '.*hidden', which no layer tracks",
    "raw_variable": "tf.Variable 'raw:0'.*raw_variable",
    "nested_raw_variable": "tf.Variable 'raw:0'.*nested_raw_variable",
    "tf_generator": "tf.Variable.*tensor_flow_generator",
    "python_function": "Python function '.*python_function.*stateful=False",
    "float8": "which the optimizer overwrites with its gradient",
    "stateful_lstm": "variable 'lstm/rnn_state'",
}


@pytest.mark.parametrize("name", REFUSED)
def test_split_refuses_before_anything_changes(name):
    if name == "stateful_lstm" and keras.__version__ < "3.14":
        pytest.skip("This Keras cannot trace it without the number of rows.")
    model = MODELS[name](AccumModel, accumulation_steps=2)
    x, y = _data_for(model, 4)
    seen = _observe(model)
    with unchanged(model):
        with pytest.raises(ValueError, match=REFUSED[name]) as refusal:
            model.train_on_batch(x, y)
    for value, before in zip(_observe(model), seen, strict=True):
        np.testing.assert_array_equal(value, before)
    assert "Train without `accumulation_steps`" in str(refusal.value)


def test_hidden_generator_is_warned_about_once():
    model = MODELS["hidden_generator"](AccumModel, accumulation_steps=2)
    # Others may warn, too.
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        _train(model)
    exact = [w for w in caught if w.category is ExactnessWarning]
    assert len(exact) == 1
    assert "RandomStandardNormal" in str(exact[0].message)


def _train_with_dropout(microbatch_size):
    seen = []

    def make_model(cls, **settings):
        dropout = keras.layers.Dropout(0.5, seed=1)
        probe = builders.Probe(lambda array: seen.append(array != 0))
        return builders.stack(cls, [dropout, probe], **settings)

    def train(model):
        for _ in range(2):
            model.train_on_batch(np.ones((12, 6)), np.ones((12, 1)))

    settings = {"microbatch_size": microbatch_size}
    return run(make_model, train, AccumModel, **settings), seen


def test_dropout_is_fresh_per_microbatch_and_reproducible():
    first, masks = _train_with_dropout(4)
    second, again = _train_with_dropout(4)
    np.testing.assert_array_equal(masks, again)
    assert_same(first, second, tolerance=0)
    # What counts the denominators may look at them once more.
    assert len({mask.tobytes() for mask in masks}) == 6
    (seed,) = [
        value
        for path, value in first.variables.items()
        if "seed_generator_state" in path
    ]
    # One draw for each of the micro-batches.
    np.testing.assert_array_equal(seed, [1, 6])


def test_global_seed_goes_on_over_microbatches():
    def train(model):
        x, y = _data_for(model)
        return [model.train_on_batch(x, y) for _ in range(2)]

    losses = []
    for _ in range(2):
        keras.utils.clear_session()
        keras.utils.set_random_seed(0)
        model = MODELS["global_seed"](AccumModel, microbatch_size=4)
        losses.append(train(model))
        after = _observe(model)[0]
        keras.utils.set_random_seed(0)
        assert np.any(after != _observe(model)[0])
    assert losses[0] == losses[1]


def test_python_function_without_effects_is_accepted():
    def make_model(cls, **settings):
        probe = builders.Probe(lambda array: None, lambda array: None)
        return builders.stack(cls, [probe], **settings)

    expected = run(make_model, _train, keras.Model)
    assert_same(
        run(make_model, _train, AccumModel, accumulation_steps=3), expected
    )


@pytest.mark.parametrize("name", ["raw_variable", "tf_generator"])
def test_eager_steps_have_no_trial_run(name):
    def train(model):
        model.compile("sgd", "mse", run_eagerly=True)
        _train(model)

    expected = run(MODELS[name], train, keras.Model)
    wanted = _observe(expected.model)
    actual = run(MODELS[name], train, AccumModel)
    assert_same(actual, expected)
    np.testing.assert_array_equal(_observe(actual.model), wanted)
    with pytest.raises(ValueError, match=REFUSED[name]):
        run(MODELS[name], train, AccumModel, accumulation_steps=2)


class ConditionalCounter(OwnCounter):
    """Writes its variable in a branch, with a value from outside."""

    def call(self, inputs):
        new = self.count + 1.0

        def write():
            self.count.assign(new)
            return inputs

        return keras.ops.cond(self.count < 5.0, write, lambda: inputs)


def test_write_in_a_branch_is_refused_by_name():
    model = _row(ConditionalCounter)(AccumModel, microbatch_size=2)
    x, y = _data_for(model)
    with unchanged(model):
        with pytest.raises(ValueError, match="conditional_counter/count"):
            model.train_on_batch(x, y)


@register_row_state
class RowCounter(keras.layers.Layer):
    """Counts the rows that it sees."""

    def build(self, input_shape):
        self.rows = self.add_weight(
            shape=(), initializer="zeros", trainable=False, name="rows"
        )

    def call(self, inputs):
        self.rows.assign_add(tf.cast(tf.shape(inputs)[0], tf.float32))
        return inputs


def test_registered_row_state_is_exact():
    def train(model):
        x, y = builders.regression_data(13)
        model.fit(x, y, batch_size=8, epochs=2, shuffle=False, verbose=0)

    expected = run(_row(RowCounter), train, keras.Model)
    actual = run(_row(RowCounter), train, AccumModel, microbatch_size=3)
    assert_same(actual, expected)
    assert float(actual.model.layers[1].rows) == 26


@pytest.mark.parametrize("argument", [int, "RowCounter", None, OwnSeed.call])
def test_bad_layer_class_is_refused(argument):
    with pytest.raises(TypeError, match="argument `layer_class`.*Received"):
        register_row_state(argument)


def test_instance_in_place_of_layer_class_is_refused():
    with pytest.raises(TypeError, match="Expected: a subclass of keras.layers"):
        register_row_state(OwnSeed())
