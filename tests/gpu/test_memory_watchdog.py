"""The watchdog on a real GPU, with a real driver."""

import keras
import pytest
import tensorflow as tf

from keras_tfopt import callbacks
from keras_tfopt.memory import Driver
from keras_tfopt.memory.device_gpus import gpus_of_devices

pytestmark = pytest.mark.gpu


def test_readings_of_allocator_and_driver():
    watchdog = callbacks.MemoryWatchdog(interval_seconds=0.01)
    model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(64)])
    model.compile("sgd", "mse")
    x = tf.random.normal((4096, 64))
    model.fit(x, x, epochs=3, verbose=0, callbacks=[watchdog])
    device = watchdog.readings[-1].devices[0]
    assert device.device == "GPU:0"
    assert device.peak_bytes >= device.allocated_bytes > 0
    assert 0 < device.utilization_ratio < 1
    assert device.driver.used_bytes >= device.allocated_bytes


def test_each_gpu_is_that_of_the_driver():
    driver = Driver.open()
    assert driver is not None
    matches = gpus_of_devices(driver)
    logical = tf.config.list_logical_devices("GPU")
    assert len(matches) == len(logical)
    driver.close()
