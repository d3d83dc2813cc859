"""Each private name that memory needs still means the same."""

import pathlib

import keras
import pytest
import tensorflow as tf

from keras_tfopt import _compat_memory


def test_what_the_profiler_writes_is_read(tmp_path):
    options = tf.profiler.experimental.ProfilerOptions(host_tracer_level=1)
    with tf.profiler.experimental.Profile(str(tmp_path), options):
        tf.ones((3, 3))
    (path,) = pathlib.Path(tmp_path).rglob("*.xplane.pb")
    space = _compat_memory.parse_xspace(path.read_bytes())
    names = {
        plane.event_metadata[event.metadata_id].name
        for plane in space.planes
        for line in plane.lines
        for event in line.events
    }
    assert names and all(isinstance(name, str) for name in names)


def test_names_of_types():
    assert _compat_memory.data_type_name(1) == "float32"
    assert _compat_memory.data_type_name(0) == ""


@pytest.mark.parametrize(
    "use",
    [
        lambda v: v.handle,
        # TensorFlow's fast path in C++ asks the object itself.
        lambda v: tf.raw_ops.Add(x=v, y=v),
        lambda v: v.numpy(),
    ],
)
def test_a_touch_acts_before_the_variable_is_used(use):
    variable = tf.Variable([1.0, 2.0])
    cls = type(variable)
    acts = []

    def act():
        acts.append(1)
        _compat_memory.forget_touch(variable)

    _compat_memory.on_touch(variable, act)
    assert _compat_memory.is_touch_awaited(variable)
    assert isinstance(variable, cls)
    assert (variable.shape, variable.dtype) == ((2,), tf.float32)
    assert not acts
    use(variable)
    use(variable)
    assert acts == [1]
    assert type(variable) is cls
    assert not _compat_memory.is_touch_awaited(variable)


def test_a_variable_moves_with_its_value_and_releases_the_old_buffer():
    variable = keras.Variable([1.0, 2.0], name="moved", trainable=False)
    old = variable.value
    _compat_memory.move_variable(variable, "CPU:0")
    assert variable.value is not old
    assert variable.value.device.endswith("CPU:0")
    assert not variable.value.trainable
    variable.assign_add([1.0, 1.0])
    assert list(variable.numpy()) == [2.0, 3.0]
    released = tf.raw_ops.ReadVariableOp(resource=old.handle, dtype=tf.float32)
    assert released.shape == (0,)


@pytest.mark.parametrize("device", [None, "CPU:0"])
def test_slots_are_made_with_the_names_and_values_of_keras(device):
    def slots(make):
        keras.utils.clear_session()
        optimizer = keras.optimizers.Adagrad()
        variable = keras.Variable([[1.0]], name="weight")
        with make(optimizer):
            optimizer.build([variable])
        assert "add_variable_from_reference" not in vars(optimizer)
        return [(v.path, v.numpy().tolist()) for v in optimizer.variables]

    expected = slots(lambda optimizer: _compat_memory.slots_on(optimizer, None))
    assert len(expected) == 3
    made_on = slots(
        lambda optimizer: _compat_memory.slots_on(optimizer, device)
    )
    assert made_on == expected
