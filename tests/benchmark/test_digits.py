import sys

import keras
import numpy as np
import pytest

from keras_tfopt.benchmark import digits
from keras_tfopt.errors import MissingExtraError


def test_digits_are_split_into_training_and_test_images():
    data = digits.load_digits()

    assert data.x_train.shape == (1437, 8, 8, 1)
    assert data.y_train.shape == (1437,)
    assert data.x_test.shape == (360, 8, 8, 1)
    assert data.y_test.shape == (360,)
    assert data.x_train.dtype == np.float32
    assert data.x_train.min() == 0
    assert data.x_train.max() == 1
    # As many of each digit.
    assert set(np.bincount(data.y_test)) <= set(range(34, 38))


def test_no_image_is_for_training_and_for_testing():
    data = digits.load_digits()
    images = np.concatenate([data.x_train, data.x_test])
    assert len(np.unique(images, axis=0)) == len(images) == 1797


def test_seed_chooses_the_test_images():
    first, again, other = (digits.load_digits(seed=seed) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first.x_test, again.x_test)
    assert not np.array_equal(first.x_test, other.x_test)


def test_missing_scikit_learn_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(MissingExtraError, match=r"keras-tfopt\[demo\]"):
        digits.load_digits()


def test_network_is_what_the_model_class_makes():
    class Model(keras.Model):
        def __init__(self, inputs, outputs, option):
            super().__init__(inputs, outputs)
            self.option = option

    model = digits.build_network(Model, option=3)

    assert isinstance(model, Model)
    assert model.option == 3
    assert model(np.zeros((2, 8, 8, 1))).shape == (2, 10)
