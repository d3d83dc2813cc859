"""A model's machine code predicts as the model does, without it."""

import shutil

import keras
import numpy as np
import pytest

from keras_tfopt import AccumModel
from keras_tfopt.compilation import compile_ahead_of_time
from tests import models
from tests import subprocesses

_PROGRAM = """
import ctypes
import sys

import numpy as np

path, inputs, outputs = sys.argv[1:]
library = ctypes.CDLL(path)
x = np.load(inputs)
library.net_input_bytes.restype = ctypes.c_longlong
assert library.net_num_inputs() == library.net_num_outputs() == 1
assert library.net_input_bytes(0) == x.nbytes
results = (ctypes.c_void_p * 1)()
arguments = (ctypes.c_void_p * 1)(x.ctypes.data)
assert library.net_run(arguments, results) == 0
y = ctypes.cast(results[0], ctypes.POINTER(ctypes.c_float))
np.save(outputs, np.ctypeslib.as_array(y, (len(x), 1)))
assert "tensorflow" not in sys.modules
"""


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_predicts_in_a_process_without_us(tmp_path):
    inputs = keras.Input((4,))
    hidden = keras.layers.Dense(8, activation="gelu")(inputs)
    hidden = keras.layers.LayerNormalization()(hidden)
    model = AccumModel(inputs, keras.layers.Dense(1)(hidden))
    models.fit(models.compiled(model), epochs=1)
    x = models.X[:6]
    np.save(tmp_path / "x.npy", x)
    signature = [keras.InputSpec(shape=(6, 4), dtype="float32")]
    library = compile_ahead_of_time(model, tmp_path / "new", signature, "net")
    assert library == tmp_path / "new" / "libnet.so"
    process = subprocesses.run_python(
        "-c",
        _PROGRAM,
        str(library),
        str(tmp_path / "x.npy"),
        str(tmp_path / "y.npy"),
    )
    assert process.returncode == 0, process.stderr
    expected = model.predict(x, verbose=0)
    found = np.load(tmp_path / "y.npy")
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def _signature(rows=2):
    return [keras.InputSpec(shape=(rows, 4), dtype="float32")]


def test_without_a_compiler(tmp_path, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(RuntimeError, match="'no-such-compiler'.*Expected"):
        compile_ahead_of_time(
            models.network(AccumModel), tmp_path, _signature()
        )


def test_bad_arguments(tmp_path):
    model = models.network(AccumModel)
    with pytest.raises(ValueError, match="input_signature.*all dimensions"):
        compile_ahead_of_time(model, tmp_path, _signature(None))
    with pytest.raises(ValueError, match="name='a-b'.*C identifier"):
        compile_ahead_of_time(model, tmp_path, _signature(), "a-b")
