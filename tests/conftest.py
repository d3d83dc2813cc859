"""What all tests share."""

import gc
import os

# TensorFlow reads it while it is imported.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import pytest
import tensorflow as tf

# Clearing a session collects garbage; what is imported is none.
gc.collect()
gc.freeze()


def pytest_collection_modifyitems(items):
    if tf.config.list_physical_devices("GPU"):
        return
    skip = pytest.mark.skip(reason="TensorFlow sees no GPU")
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(skip)


@pytest.fixture(autouse=True)
def fresh_keras():
    """Gives each test a Keras without names or seeds of the one before."""
    keras.utils.clear_session()
    keras.utils.set_random_seed(0)
