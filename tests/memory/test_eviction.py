"""Values leave the device and come back bit for bit."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_tfopt.memory import Eviction
from keras_tfopt.memory import eviction as module
from keras_tfopt.memory.eviction import evictable
from keras_tfopt.memory.eviction import is_away

DTYPES = ["float32", "bfloat16", "float16", "int64", "uint8", "bool"]


def variables():
    """Returns one variable of each type, NaN and zeros with signs included."""
    random = np.random.default_rng(0)
    found = []
    for dtype in DTYPES:
        values = tf.cast(random.normal(size=(64, 128)), dtype).numpy()
        if dtype == "float32":
            values[0, :3] = np.nan, -0.0, np.inf
        found.append(tf.Variable(values))
    return found


def as_bytes(variable):
    return variable.read_value().numpy().tobytes()


def test_values_come_back_bit_for_bit():
    evicted = variables()
    before = [as_bytes(variable) for variable in evicted]
    total = tf.function(lambda: tf.reduce_sum(tf.cast(evicted[3], tf.int64)))
    expected = int(total())
    eviction = Eviction(evicted)
    assert eviction.bytes == 64 * 128 * (4 + 2 + 2 + 8 + 1 + 1)
    assert all(map(is_away, evicted))
    eviction.restore()
    assert not any(map(is_away, evicted))
    assert [as_bytes(variable) for variable in evicted] == before
    # What was compiled before finds the same variable.
    assert int(total()) == expected
    eviction.restore()


def test_a_buffer_is_not_shared_with_the_array():
    array = np.ones((64, 64), "float32")
    tensor = tf.constant(array)
    view = np.frombuffer(memoryview(tensor), np.uint8)
    assert module.may_share(tensor, view)
    assert not module.may_share(tf.identity(tensor) + 1, array)
    variable = tf.Variable(array)

    class Kept(module.HostStore):
        def discard(self):
            self.kept = self._arrays

    store = Kept()
    Eviction([variable], store).restore()
    store.kept[0][:] = 2
    assert variable.numpy().sum() == 64 * 64
    variable.assign_add(array)
    assert np.all(store.kept[0] == 2)


def test_a_value_that_is_away_has_no_buffer():
    variable = tf.Variable(np.ones((64, 64)))
    handle = variable.handle
    eviction = Eviction([variable])
    assert tf.raw_ops.VariableShape(input=handle).numpy().tolist() == [0]
    eviction.restore()
    assert tf.raw_ops.VariableShape(input=handle).numpy().tolist() == [64, 64]


TOUCHES = {
    "numpy": lambda v: v.numpy(),
    "operator": lambda v: v + 1,
    "kernel": lambda v: tf.matmul(v, v),
    "conversion": tf.convert_to_tensor,
    "assignment": lambda v: v.assign_add(tf.zeros((64, 64))),
    "slice": lambda v: v[1:3].assign(v[1:3]),
    "gathering": lambda v: tf.gather(v, [0]),
    "tracing": lambda v: tf.function(lambda: tf.reduce_sum(v))(),
    "checkpoint": lambda v: tf.train.Checkpoint(v=v).write("checkpoint"),
}


@pytest.mark.parametrize("name", TOUCHES)
def test_a_touch_brings_it_back(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    values = np.random.default_rng(0).normal(size=(64, 64)).astype("float32")
    variable = tf.Variable(values)
    eviction = Eviction([variable])
    TOUCHES[name](variable)
    assert not eviction.is_away
    np.testing.assert_array_equal(variable.numpy(), values)


def test_saving_a_model_saves_what_is_away(tmp_path):
    model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(64)])
    expected = model.get_weights()
    touches = []

    def touch():
        touches.append(1)
        eviction.restore()

    eviction = Eviction(model.variables, on_touch=touch)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded.get_weights()[0], expected[0])
    assert touches == [1]


def test_an_interrupted_return_can_be_resumed(monkeypatch):
    evicted = [tf.Variable(np.full((n, 64), n)) for n in (16, 32, 64)]
    eviction = Eviction(evicted)
    write = module._write

    def fail(variable, array):
        if array.shape[0] == 32:
            raise MemoryError("no room")
        write(variable, array)

    monkeypatch.setattr(module, "_write", fail)
    with pytest.raises(MemoryError):
        eviction.restore()
    assert [is_away(variable) for variable in evicted] == [True, True, False]
    monkeypatch.setattr(module, "_write", write)
    eviction.restore()
    for variable in evicted:
        assert np.all(variable.numpy() == variable.shape[0])


def test_what_cannot_be_stored_stays():
    class Full(module.HostStore):
        def save(self, arrays):
            raise OSError("no space left")

    variable = tf.Variable(np.ones((64, 64)))
    with pytest.raises(OSError, match="no space"):
        Eviction([variable], Full())
    assert not is_away(variable)
    assert variable.numpy().sum() == 64 * 64


def test_small_variables_stay():
    assert evictable([tf.Variable(0), tf.Variable(tf.ones((8, 8)))]) == []


def test_a_variable_is_evicted_once():
    variable = tf.Variable(np.ones((64, 64)))
    eviction = Eviction([variable])
    with pytest.raises(ValueError, match="evicted once.*Expected"):
        Eviction([variable])
    eviction.restore()


def test_replicated_variables_are_refused():
    strategy = tf.distribute.MirroredStrategy(["CPU:0"])
    with strategy.scope():
        variable = tf.Variable(tf.ones((64, 64)))
    with pytest.raises(ValueError, match="without a distribution strategy"):
        Eviction([variable])
