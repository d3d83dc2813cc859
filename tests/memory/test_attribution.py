"""Names of operations lead to layers, or to nobody."""

import keras
import pytest
import tensorflow as tf

from keras_tfopt.memory.allocation_trace import Allocation
from keras_tfopt.memory.attribution import LOOP
from keras_tfopt.memory.attribution import LOSS
from keras_tfopt.memory.attribution import OPTIMIZER
from keras_tfopt.memory.attribution import Attribution
from keras_tfopt.memory.attribution import short_operation
from tests.equivalence import unchanged


@pytest.fixture
def model():
    inner = keras.Sequential(
        [keras.Input((4,)), keras.layers.Dense(4, name="dense")], name="inner"
    )
    inputs = keras.Input((4,))
    outputs = keras.layers.Dense(4, name="dense")(inner(inputs))
    outputs = keras.layers.Dense(1, name="dense_1")(outputs)
    model = keras.Model(inputs, outputs)
    model.compile("adam", "mse")
    return model


def operations_of(model, attribution):
    @tf.function(autograph=False)
    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(x))
        return tape.gradient(loss, model.trainable_variables)

    with attribution.marked():
        graph = step.get_concrete_function(tf.TensorSpec((8, 4))).graph
    return [
        operation.name
        for operation in graph.get_operations()
        if operation.type == "MatMul"
    ]


def test_each_layer_is_known_by_its_mark(model):
    attribution = Attribution(model)
    forward, backward = {}, {}
    for name in operations_of(model, attribution):
        layer = attribution.layer_of(name)
        found = backward if "gradient_tape" in name else forward
        found[layer] = found.get(layer, 0) + 1
    # `dense_1` is a layer, and the name of the second scope of `dense`.
    outer, inner = (
        layer.path
        for layer in (model.get_layer("dense"), model.layers[1].layers[0])
    )
    assert forward == {inner: 1, outer: 1, "dense_1": 1}
    # The first layer's inputs need no gradient.
    assert backward == {inner: 1, outer: 2, "dense_1": 2}


def test_marks_are_taken_back(model):
    attribution = Attribution(model)
    with unchanged(model), pytest.raises(KeyError), attribution.marked():
        assert "call" in vars(model.layers[-1])
        raise KeyError
    assert all("call" not in vars(layer) for layer in model.layers)


@pytest.mark.parametrize(
    ("operation", "layer"),
    [
        ("functional_1/inner_1/inner_1/MatMul", "inner"),
        # That of `dense` or of `dense_1`?
        ("functional_1/dense_1/MatMul", None),
        ("functional_1/dense_1_1/MatMul", "dense_1"),
        ("StatefulPartitionedCall/compile_loss/mse/Square", LOSS),
        ("StatefulPartitionedCall/adam/mul_1", OPTIMIZER),
        ("while_1/body/_155/while_1/add_19", LOOP),
        ("while/body/_1/while/StatefulPartitionedCall/Cast", None),
        ("mul_7", None),
        ("", None),
    ],
)
def test_names_of_keras_where_they_are_unambiguous(model, operation, layer):
    assert Attribution(model).layer_of(operation) == layer


@pytest.mark.parametrize(
    ("operation", "region", "kind"),
    [
        ("keras_tfopt_layer_1/MatMul", "output", "activations"),
        ("keras_tfopt_layer_1/MatMul", "temp", "temporaries"),
        ("gradient_tape/keras_tfopt_layer_1/MatMul", "output", "gradients"),
        ("adam/mul", "output", "optimizer"),
        ("while/body/_1/while/add", "output", "accumulators"),
        ("mul_7", "output", "other"),
    ],
)
def test_kinds(model, operation, region, kind):
    allocation = Allocation(0.0, 1.0, 1, 1, operation, region)
    assert Attribution(model).kind_of(allocation) == kind


def test_short_names():
    name = "functional_1/dense_1/keras_tfopt_layer_12/MatMul"
    assert short_operation(name) == "dense_1/MatMul"
