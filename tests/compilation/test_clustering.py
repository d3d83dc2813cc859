"""Auto-clustering is on where TensorFlow was started for it, or refused."""

import json

import pytest
import tensorflow as tf

from keras_tfopt import callbacks
from keras_tfopt.compilation import allow_clustering_on_cpu
from keras_tfopt.compilation.clustering import AutoClustering
from keras_tfopt.compilation.clustering import is_clustering
from tests import models
from tests import subprocesses

_SOURCE = """
import json

import keras
import numpy as np

from keras_tfopt import AccumModel
from keras_tfopt import callbacks
from keras_tfopt.compilation import allow_clustering_on_cpu
from keras_tfopt.compilation.clustering import AutoClustering
from keras_tfopt.compilation.clustering import is_clustering

allow_clustering_on_cpu()

from tests import builders
from tests import models
from tests.equivalence import assert_same
from tests.equivalence import run

found = {"before": is_clustering()}
clustering = AutoClustering()
for _ in range(2):
    clustering.start()
    found["on"] = is_clustering()
    clustering.stop()
    found["off"] = is_clustering()

xla = callbacks.XLACompilation(mode="auto_clustering")
seen = []
look = models.AtBatch(1, lambda model: seen.append(is_clustering()))


def fit(model, *used):
    data = (models.X, models.Y)
    return models.fit(model, validation_data=data, callbacks=list(used))


expected = run(models.regressor, fit, keras.Model)
for cls in (keras.Model, AccumModel):
    outcome = run(models.regressor, lambda model: fit(model, xla, look), cls)
    assert_same(outcome, expected)
found["inside"] = list(seen)
found["after"] = is_clustering()

# Turned off and on between two steps of one epoch.
model = models.regressor(AccumModel)
seen.clear()
models.fit(model, epochs=1, callbacks=[
    xla,
    models.AtBatch(0, lambda model: xla.switch("off")),
    look,
])
found["switched"] = seen[-1]


class Once:
    \"\"\"Fails in the second of all steps.\"\"\"

    calls = 0

    def __call__(self, array):
        self.calls += 1
        if self.calls == 2:
            raise ValueError("passing")


inputs = keras.Input((4,))
outputs = keras.layers.Dense(1)(builders.Probe(Once())(inputs))
model = models.compiled(AccumModel(inputs, outputs))
xla = callbacks.XLACompilation(mode="auto_clustering")
models.fit(model, callbacks=[xla, look])
found["refused"] = [event.reason for event in xla.plan_events]
found["steps"] = int(model.optimizer.iterations)
print(json.dumps(found))
"""


@pytest.mark.slow
def test_started_for_clustering():
    printed = subprocesses.run_source(_SOURCE, TF_XLA_FLAGS=None)
    found = json.loads(printed.splitlines()[-1])
    reason = found.pop("refused")
    assert found == {
        "before": False,
        "on": True,
        "off": False,
        "inside": [True] * 4,
        "after": False,
        "switched": False,
        "steps": 6,
    }
    (only,) = reason
    assert only.startswith("failed under auto-clustering, operation PyFunc")


def test_too_late():
    clustering = AutoClustering()
    with pytest.raises(RuntimeError, match="Received.*Expected: TF_XLA_FLAGS="):
        clustering.start()
    assert not clustering.is_on
    assert tf.config.optimizer.get_jit() == ""
    assert not is_clustering()


def test_the_flag_comes_too_late():
    tf.ones(())
    message = "Received: --tf_xla_cpu_global_jit after"
    with pytest.raises(RuntimeError, match=message):
        allow_clustering_on_cpu()


def test_fit_refuses_before_the_first_step():
    model = models.regressor(models.keras.Model)
    xla = callbacks.XLACompilation(mode="auto_clustering")
    with pytest.raises(RuntimeError, match="TF_XLA_FLAGS"):
        models.fit(model, callbacks=[xla])
    assert int(model.optimizer.iterations) == 0
    models.fit(model, epochs=1)
