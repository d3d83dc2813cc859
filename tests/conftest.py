"""What all tests share."""

import gc
import logging
import os
import subprocess

# TensorFlow reads it while it is imported.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import pytest
import tensorflow as tf


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
    # Clearing collects garbage, and TensorFlow keeps what it has ever traced.
    # What has survived is not looked through again for each test.
    gc.freeze()


@pytest.fixture
def caplog(caplog):
    """Captures what this package logs, and not what others warn of."""
    ours = logging.Filter("keras_tfopt")
    caplog.handler.addFilter(ours)
    yield caplog
    caplog.handler.removeFilter(ours)


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 1 MiB."""
    path = tmp_path / "disk"
    path.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(path)]
    try:
        mounted = subprocess.run(command, capture_output=True).returncode == 0
    except OSError:
        mounted = False
    if not mounted:
        pytest.skip("file systems cannot be mounted here")
    yield path
    subprocess.run(["umount", str(path)], check=True)
