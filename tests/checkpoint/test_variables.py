"""All variables of a run, their values, and what sets two models apart."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_tfopt.checkpoint import variables


class Own(keras.layers.Layer):
    """Holds a variable that Keras does not know."""

    def __init__(self):
        super().__init__()
        self.step = tf.Variable(0.0)
        self.text = tf.Variable("text")

    def call(self, inputs):
        return inputs


def _model(units=2, optimizer="adam"):
    layers = [keras.layers.Dense(units), Own(), keras.layers.Dropout(0.5)]
    model = keras.Sequential([keras.Input((3,)), *layers])
    model.compile(optimizer, "mse", metrics=["mae"])
    model.train_on_batch(np.ones((4, 3)), np.ones((4, units)))
    return model


def test_every_variable_is_found_once():
    model = _model()
    found = variables.variables_of(model)
    assert len({id(variable) for variable in found}) == len(found)
    wanted = [
        *model.weights,
        *model.optimizer.variables,
        *model.metrics_variables,
        model.layers[2].seed_generator.state,
        model.layers[1].step,
    ]
    assert {id(v) for v in found} == {id(v) for v in wanted}


def test_a_snapshot_is_of_its_moment():
    model = _model()
    found = variables.variables_of(model)
    before = [variable.numpy() for variable in found]
    taken = variables.snapshot(found)
    for _ in range(3):
        model.train_on_batch(np.ones((4, 3)), np.zeros((4, 2)))
    for value, expected in zip(taken, before, strict=True):
        np.testing.assert_array_equal(value, expected)
    assert (model.get_weights()[0] != before[0]).any()
    variables.assign(found, [np.asarray(value) for value in taken])
    for variable, expected in zip(found, before, strict=True):
        np.testing.assert_array_equal(variable.numpy(), expected)


def _specs(**kwargs):
    return variables.specs_of(variables.variables_of(_model(**kwargs)))


def test_the_same_model_under_other_names_passes():
    # Keras counts names within a process.
    variables.check_specs(_specs(), _specs())


@pytest.mark.parametrize(
    "kwargs, message",
    [
        (
            {"units": 5},
            r"kernel float32\[3, 2\] in the backup is .*kernel float32\[3, 5\]",
        ),
        ({"optimizer": "sgd"}, "adam.*only in the backup"),
    ],
    ids=["units", "optimizer"],
)
def test_differences_are_named(kwargs, message):
    with pytest.raises(ValueError, match=f"{message}.*Expected"):
        variables.check_specs(_specs(), _specs(**kwargs))
