"""What is assumed where a split batch cannot be proven equal."""

import contextlib
import warnings

import keras
import pytest

from keras_tfopt import AccumModel
from keras_tfopt.accumulation import ExactnessWarning
from tests.equivalence import assert_equal_training
from tests.equivalence import assert_same
from tests.equivalence import run


@contextlib.contextmanager
def collected_assumptions():
    """Collects the messages of `ExactnessWarning`; all others are errors."""
    messages = []
    with warnings.catch_warnings(record=True) as record:
        warnings.simplefilter("error")
        warnings.simplefilter("always", ExactnessWarning)
        yield messages
    messages.extend(sorted(str(warning.message) for warning in record))


def assert_assumed(messages, expected):
    """Compares messages with parts of those that are expected, in order."""
    assert len(messages) == len(expected), messages
    for message, part in zip(messages, expected, strict=True):
        assert part in message


def assert_equal_and_assumed(make_model, fit, *expected):
    """Asserts what is assumed, once each, and that it is right."""
    with collected_assumptions() as messages:
        assert_equal_training(make_model, fit, microbatch_size=4)
    assert_assumed(messages, expected)


def assert_different_and_assumed(make_model, fit, *expected):
    """Asserts what is assumed, once each, and that it is wrong.

    Returns:
        The histories of the run under test and of stock Keras.
    """
    stock = run(make_model, fit, keras.Model)
    with collected_assumptions() as messages:
        split = run(make_model, fit, AccumModel, microbatch_size=4)
    assert_assumed(messages, expected)
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        assert_same(split, stock)
    return split.history, stock.history
