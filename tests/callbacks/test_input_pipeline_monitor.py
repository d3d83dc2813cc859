import logging
import time

import keras
import pytest
import tensorflow as tf

from keras_tfopt import AccumModel
from keras_tfopt import callbacks
from tests import builders


def dataset(seconds):
    x, y = builders.regression_data(rows=40)

    def wait(row):
        time.sleep(seconds)
        return row

    def slow(row, target):
        row = tf.numpy_function(wait, [row], tf.float32, stateful=False)
        return tf.ensure_shape(row, (6,)), target

    rows = tf.data.Dataset.from_tensor_slices((x, y))
    return rows.map(slow).batch(2)


def fit(data, monitor, cls=AccumModel):
    model = builders.stack(cls, [])
    model.fit(data, epochs=2, shuffle=False, verbose=0, callbacks=[monitor])


@pytest.mark.parametrize("cls", [AccumModel, keras.Model])
def test_waiting_is_told_once_with_advice(cls, caplog):
    data = dataset(0.02)
    monitor = callbacks.InputPipelineMonitor(data, interval_seconds=0.1)

    with caplog.at_level(logging.WARNING, "keras_tfopt"):
        fit(data, monitor, cls)

    assert monitor.wait_ratio > 0.1
    told = [r.message for r in caplog.records if "waits for data" in r.message]
    assert len(told) == 1
    assert "prefetch" in told[0] and "num_parallel_calls" in told[0]


def test_fast_pipeline_is_left_in_peace():
    monitor = callbacks.InputPipelineMonitor(max_wait_ratio=0.99)
    fit(dataset(0.0).cache().prefetch(2), monitor)
    assert monitor.advice == ()


@pytest.mark.parametrize("arguments", [{"max_wait_ratio": 0}, {"dataset": [1]}])
def test_refuses(arguments):
    with pytest.raises(ValueError, match="Received"):
        callbacks.InputPipelineMonitor(**arguments)
