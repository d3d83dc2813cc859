"""What commands work on: named networks, and functions of users."""

import sys

import pytest

from keras_tfopt.benchmark import source
from tests import models


def own_model():
    """A source, as users write them."""
    return models.regressor(models.keras.Model), (models.X, models.Y)


def no_model():
    return 3


def test_sources():
    model, batch = source.load_source("mlp")
    assert len(batch[0]) == 8192
    assert model.compiled
    model, (x, y) = source.load_source(f"{__name__}:own_model")
    assert x is models.X
    assert y is models.Y


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nothing", "'nothing'.*MLP, convnet, transformer"),
        ("no_such_module:make", "no_such_module.*module:function"),
        (f"{__name__}:no_such_function", "no_such_function"),
        (f"{__name__}:no_model", "Received: int.*keras.Model"),
    ],
)
def test_bad_sources(name, message):
    path = list(sys.path)
    with pytest.raises(ValueError, match=message):
        source.load_source(name)
    assert sys.path == path
