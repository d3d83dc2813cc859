"""What one process compiles, the next one reads."""

import json
import os

import pytest
import tensorflow as tf

from keras_tfopt.compilation import persist_compilations
from tests import subprocesses

_SOURCE = """
import json
import os
import sys

from keras_tfopt.compilation import persist_compilations

persist_compilations(sys.argv[1])
import keras

from keras_tfopt import AccumModel
from tests import models

keras.utils.set_random_seed(0)
model = models.regressor(AccumModel, {"jit_compile": True})
loss = model.train_on_batch(models.X, models.Y)[0]
print(json.dumps([float(loss), os.environ["TF_XLA_FLAGS"]]))
"""


@pytest.mark.slow
def test_processes_share_what_is_compiled(tmp_path):
    directory = tmp_path / "new" / "cache"
    flags = "--tf_xla_max_cluster_size=100000"
    found, times = [], []
    for _ in range(2):
        process = subprocesses.run_python(
            "-c", _SOURCE, str(directory), TF_XLA_FLAGS=flags
        )
        assert process.returncode == 0, process.stderr
        found.append(json.loads(process.stdout))
        (file,) = directory.iterdir()
        times.append(file.stat().st_mtime_ns)
    assert found[0] == found[1]
    # The second process compiled nothing that it would have written.
    assert times[0] == times[1]
    assert file.stat().st_size > 1000
    expected = f"{flags} --tf_xla_persistent_cache_directory={directory}"
    assert found[0][1] == expected


def test_too_late(tmp_path):
    tf.ones(())
    before = dict(os.environ)
    with pytest.raises(RuntimeError, match="Expected: this call before"):
        persist_compilations(tmp_path / "cache")
    assert dict(os.environ) == before
    assert list(tmp_path.iterdir()) == []
