"""Each private name that recomputing needs still means the same."""

import ast
import inspect
import pathlib

import keras
import numpy as np
import tensorflow as tf

from keras_tfopt import _compat_remat


def _functional():
    inputs = keras.Input((3,))
    hidden = keras.layers.Dense(4, name="first")(inputs)
    return keras.Model(inputs, {"out": keras.ops.tanh(hidden)})


def test_stop_recording_stops_all_tapes():
    variable = tf.Variable(2.0)
    with tf.GradientTape() as outer, tf.GradientTape() as inner:
        with _compat_remat.stop_recording():
            product = variable * variable
        square = variable * 3.0
    assert inner.gradient(product, variable) is None
    assert float(outer.gradient(square, variable)) == 3.0


def test_xla_is_seen_while_a_graph_is_built():
    seen = []

    def run(x):
        def body(x):
            seen.append(_compat_remat.is_in_xla())
            return x + 1.0

        return tf.while_loop(lambda x: x < 2.0, body, (x,))[0]

    tf.function(run, jit_compile=True)(tf.constant(0.0))
    tf.function(run, jit_compile=False)(tf.constant(0.0))
    assert seen == [True, False]
    assert not _compat_remat.is_in_xla()


def test_call_state_holds_what_outer_calls_tell():
    found = []

    class Inner(keras.layers.Layer):
        def call(self, inputs, training=None):
            found.append((training, self.compute_dtype))
            return inputs

    class Outer(keras.layers.Layer):
        def __init__(self):
            super().__init__(dtype="mixed_float16")
            self.inner = Inner(dtype="float32")
            self.scale = self.add_weight(shape=(), initializer="ones")

        def call(self, inputs, training=None):
            self.state = _compat_remat.call_state()
            return self.inner(inputs)

    layer = Outer()
    x = np.ones((2, 3), "float32")
    layer(x, training=True)
    assert found[-1][0] is True
    found.clear()
    with _compat_remat.restored_call_state(layer.state):
        layer.inner(x)
        layer.inner(x, training=False)
    # What a call leaves behind is not seen by the next restoration.
    with _compat_remat.restored_call_state(layer.state):
        layer.inner(x)
        assert layer.scale.value.dtype == tf.float16
    assert [training for training, _ in found] == [True, False, True]
    assert layer.scale.value.dtype == tf.float32
    layer.inner(x)
    assert found[-1][0] is None


def test_take_loss_knows_who_added_it():
    layer = keras.layers.Dense(2, activity_regularizer="l2")
    other = keras.layers.Dense(2)
    with keras.StatelessScope(collect_losses=True) as scope:
        layer(np.ones((2, 3), "float32"))
        (loss,) = scope.losses
        assert not _compat_remat.take_loss(other, loss)
        assert layer.losses
        assert _compat_remat.take_loss(layer, loss)
        assert not _compat_remat.take_loss(layer, loss)
        assert not layer.losses


def test_functional_of_finds_the_graph_of_a_model():
    model = _functional()
    assert _compat_remat.functional_of(model) is model
    sequential = keras.Sequential([keras.layers.Dense(2)])
    assert _compat_remat.functional_of(sequential) is None
    sequential.build((None, 3))
    graph = _compat_remat.functional_of(sequential)
    assert _compat_remat.ordered_nodes(graph)
    assert _compat_remat.functional_of(keras.Model()) is None


def test_a_graph_is_run_node_by_node():
    model = _functional()
    x = np.ones((2, 3), "float32")
    nodes = _compat_remat.ordered_nodes(model)
    assert [node.operation.name for node in nodes][0] == "first"
    (symbolic,) = _compat_remat.graph_inputs(model)
    known = {id(symbolic): tf.constant(x)}
    for node in nodes:
        assert all(id(tensor) in known for tensor in node.input_tensors)
        args, kwargs = node.arguments.fill_in(known)
        known[id(node.outputs[0])] = node.operation(*args, **kwargs)
    outputs = [known[id(tensor)] for tensor in model.outputs]
    packed = _compat_remat.pack_outputs(model, outputs)
    np.testing.assert_array_equal(packed["out"], model(x)["out"])


def test_run_through_graph_can_be_replaced():
    model = _functional()
    original = _compat_remat.run_through_graph(model)
    calls = []

    def run(*args, **kwargs):
        calls.append(list(inspect.signature(original).parameters))
        return original(*args, **kwargs)

    _compat_remat.set_run_through_graph(model, run)
    x = np.ones((2, 3), "float32")
    model(x)
    assert calls == [["inputs", "operation_fn", "call_fn"]]
    _compat_remat.set_run_through_graph(model, None)
    model(x)
    assert len(calls) == 1


def test_every_function_is_tested_here():
    names = [
        name
        for name, value in vars(_compat_remat).items()
        if inspect.isfunction(value)
        and value.__module__ == _compat_remat.__name__
    ]
    used = {
        node.attr
        for node in ast.walk(ast.parse(pathlib.Path(__file__).read_text()))
        if isinstance(node, ast.Attribute)
    }
    assert set(names) <= used
