"""Global generators go on where they were."""

import random

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_tfopt.checkpoint.random_state import capture_random_state
from keras_tfopt.checkpoint.random_state import restore_random_state

DRAWS = {
    "python": random.random,
    "numpy": np.random.random,
    "keras": lambda: float(keras.random.uniform(())),
    "tensorflow": lambda: float(tf.random.get_global_generator().uniform(())),
    "operations": lambda: list(
        tf.data.Dataset.range(50).shuffle(50).as_numpy_iterator()
    ),
}


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_draws_are_repeated(draw):
    draw()
    state = capture_random_state()
    expected = [draw() for _ in range(3)]
    restore_random_state(state)
    assert [draw() for _ in range(3)] == expected
    assert draw() not in expected


def test_a_generator_that_is_not_in_use_is_made_when_it_is_restored():
    keras.random.uniform(())
    state = capture_random_state()
    expected = float(keras.random.uniform(()))
    keras.utils.clear_session()
    assert "keras" not in capture_random_state()
    restore_random_state(state)
    assert float(keras.random.uniform(())) == expected
