"""Tests on several logical CPUs, which must be made before TensorFlow starts.

`tests/distribution/test_replicated.py` runs them in a process of their own.
"""

import pytest
import tensorflow as tf

CPUS = 3

_cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(
    _cpu, [tf.config.LogicalDeviceConfiguration()] * CPUS
)


@pytest.fixture(scope="module")
def strategy():
    """Two replicas that add up gradients as TensorFlow chooses."""
    from tests.distribution.replicated.strategies import mirrored

    return mirrored()
