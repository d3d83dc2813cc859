"""Tests on several logical CPUs, which must be made before TensorFlow starts.

`tests/distribution/test_sharded.py` runs them in a process of their own.
"""

import tensorflow as tf

CPUS = 4

_cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(
    _cpu, [tf.config.LogicalDeviceConfiguration()] * CPUS
)
