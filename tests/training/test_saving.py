"""Saving, cloning and exporting models, and the plain model back."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_tfopt import AccumMixin
from keras_tfopt import AccumModel
from keras_tfopt.benchmark import digits
from tests import models
from tests.equivalence import state_of
from tests.subprocesses import run_source


@keras.saving.register_keras_serializable("tests")
class Plain(keras.Model):
    def __init__(self, units=1, **kwargs):
        super().__init__(**kwargs)
        self.units = units
        self.hidden = keras.layers.Dense(5, activation="tanh")
        self.head = keras.layers.Dense(units)

    def call(self, inputs):
        return self.head(self.hidden(inputs))

    def get_config(self):
        return {**super().get_config(), "units": self.units}


@keras.saving.register_keras_serializable("tests")
class Mixed(AccumMixin, Plain):
    pass


@keras.saving.register_keras_serializable("tests")
class FixedSettings(AccumModel):
    """A subclass whose constructor takes no settings."""

    def __init__(self, **kwargs):
        super().__init__(microbatch_size=4, **kwargs)
        self.head = keras.layers.Dense(1)

    def call(self, inputs):
        return self.head(inputs)


MODELS = {
    "functional": lambda: models.network(AccumModel, microbatch_size=4),
    "wrapped": lambda: AccumModel.from_model(Plain(), microbatch_size=4),
    "mixed": lambda: Mixed(microbatch_size=4),
    "fixed": FixedSettings,
}


def _trained(name):
    model = MODELS[name]()
    model.compile("adam", "mse", metrics=["mae"])
    models.fit(model)
    return model


@pytest.mark.parametrize("name", MODELS)
def test_keras_file_continues_to_the_same_numbers(name, tmp_path):
    model = _trained(name)
    path = tmp_path / "model.keras"
    model.save(path)
    loaded = keras.saving.load_model(path)
    assert type(loaded) is type(model)
    assert loaded.plan == model.plan
    assert int(loaded.optimizer.iterations) == 6
    expected = models.fit(model).history
    assert models.fit(loaded).history == expected
    for (path, value), other in zip(
        state_of(loaded).items(), state_of(model).values(), strict=True
    ):
        np.testing.assert_array_equal(value, other, err_msg=path)


def test_gather_steps_are_saved(tmp_path):
    model = models.regressor(AccumModel, gather_steps=3)
    models.fit(model, epochs=1)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert loaded.gather_steps == 3


def test_weights_file(tmp_path):
    model = _trained("functional")
    model.save_weights(tmp_path / "model.weights.h5")
    other = _trained("functional")
    other.set_weights([0 * value for value in other.get_weights()])
    other.load_weights(tmp_path / "model.weights.h5")
    for value, expected in zip(
        other.get_weights(), model.get_weights(), strict=True
    ):
        np.testing.assert_array_equal(value, expected)


def test_config_round_trip():
    model = models.network(AccumModel, accumulation_steps=3)
    again = AccumModel.from_config(model.get_config())
    assert again.plan.accumulation_steps == 3
    assert [w.shape for w in again.weights] == [w.shape for w in model.weights]


def test_clone_of_a_compiled_model():
    model = _trained("functional")
    clone = keras.models.clone_model(model)
    assert isinstance(clone, AccumModel)
    assert clone.plan == model.plan
    assert clone.weights[0] is not model.weights[0]
    models.fit(clone)


def test_clone_to_a_stock_class():
    class Stack(AccumMixin, keras.Sequential):
        pass

    model = Stack([keras.Input((4,)), keras.layers.Dense(1)], microbatch_size=2)
    clone = keras.models.clone_model(models.compiled(model))
    assert type(clone) is keras.Sequential
    models.fit(clone)


@pytest.mark.parametrize("name", ["functional", "wrapped", "mixed"])
def test_export_serves_without_the_package(name, tmp_path):
    model = _trained(name)
    model.export(tmp_path / "served", verbose=False)
    np.save(tmp_path / "x.npy", models.X)
    np.save(tmp_path / "y.npy", model.predict(models.X, verbose=0))
    run_source(
        "import sys\n"
        "import numpy as np, tensorflow as tf\n"
        f"served = tf.saved_model.load({str(tmp_path / 'served')!r})\n"
        f"x = np.load({str(tmp_path / 'x.npy')!r})\n"
        f"y = np.load({str(tmp_path / 'y.npy')!r})\n"
        "np.testing.assert_allclose(served.serve(x), y, atol=1e-6)\n"
        "assert 'keras_tfopt' not in sys.modules\n"
    )


@pytest.mark.parametrize("name", MODELS)
def test_plain_model_shares_weights(name):
    model = _trained(name)
    plain = model.to_keras_model()
    assert not isinstance(plain, AccumMixin)
    assert plain.weights[0] is model.weights[0]
    np.testing.assert_allclose(
        plain(models.X), model(models.X), rtol=0, atol=1e-6
    )


def test_plain_model_of_given_inputs():
    @keras.saving.register_keras_serializable("tests")
    class Words(AccumModel):
        def __init__(self):
            super().__init__()
            self.table = keras.layers.Embedding(7, 3)

        def call(self, inputs):
            return self.table(inputs)

    plain = Words().to_keras_model(keras.Input((5,), dtype="int32"))
    assert plain(np.zeros((2, 5), "int32")).shape == (2, 5, 3)


def test_plain_model_that_cannot_be_made():
    class Raw(AccumModel):
        def call(self, inputs):
            return tf.linalg.band_part(inputs, 0, 0)

    with pytest.raises(ValueError, match="which has not been called yet|built"):
        Raw().to_keras_model()
    with pytest.raises(
        ValueError, match=r"(?s)Raw.call, which raised .*from_model"
    ):
        Raw().to_keras_model(keras.Input((3, 3)))


@pytest.mark.filterwarnings("ignore:.*tf.lite.Interpreter is deprecated")
def test_plain_model_of_the_demo_converts_to_tflite():
    model = digits.build_network(AccumModel)
    x = np.random.default_rng(0).normal(size=(3, *model.input_shape[1:]))
    x = x.astype("float32")
    converter = tf.lite.TFLiteConverter.from_keras_model(model.to_keras_model())
    interpreter = tf.lite.Interpreter(model_content=converter.convert())
    entry = interpreter.get_input_details()[0]["index"]
    interpreter.resize_tensor_input(entry, x.shape)
    interpreter.allocate_tensors()
    interpreter.set_tensor(entry, x)
    interpreter.invoke()
    exit_ = interpreter.get_output_details()[0]["index"]
    np.testing.assert_allclose(
        interpreter.get_tensor(exit_), model.predict(x, verbose=0), atol=1e-5
    )
