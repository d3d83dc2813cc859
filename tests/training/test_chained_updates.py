"""Updates in a chain: the same results, and the optimizer as it was."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_tfopt.training.chained_updates import chained_updates

STEPS = 3


def _variables():
    random = np.random.default_rng(0)
    shapes = ((4, 3), (3,), (3, 2))
    return [
        keras.Variable(random.normal(size=shape).astype("float32"))
        for shape in shapes
    ]


def _gradients(step):
    random = np.random.default_rng(step + 1)
    dense = [
        random.normal(size=v.shape).astype("float32") for v in _variables()
    ]
    gradients = [tf.constant(value) for value in dense]
    gradients[0] = tf.IndexedSlices(
        gradients[0][:2], tf.constant([1, 3]), tf.constant([4, 3])
    )
    return gradients


def _train(optimizer, chained):
    variables = _variables()
    optimizer.build(variables)

    @tf.function(autograph=False)
    def apply(gradients):
        if not chained:
            optimizer.apply(gradients, variables)
            return
        with chained_updates(optimizer):
            optimizer.apply(gradients, variables)

    for step in range(STEPS):
        apply(_gradients(step))
    return [v.numpy() for v in (*variables, *optimizer.variables)]


OPTIMIZERS = {
    "adam": lambda: keras.optimizers.Adam(0.01, amsgrad=True),
    "ema": lambda: keras.optimizers.AdamW(
        0.01, use_ema=True, ema_overwrite_frequency=2, global_clipnorm=1.0
    ),
    "scaled": lambda: keras.optimizers.LossScaleOptimizer(
        keras.optimizers.Adam(0.01), initial_scale=4, dynamic_growth_steps=2
    ),
    "nadam": lambda: keras.optimizers.Nadam(0.01),
    "muon": lambda: keras.optimizers.Muon(0.01),
    "accumulating": lambda: keras.optimizers.SGD(
        0.1, momentum=0.9, gradient_accumulation_steps=2
    ),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_results_equal_those_without_a_chain(name):
    expected = _train(OPTIMIZERS[name](), chained=False)
    actual = _train(OPTIMIZERS[name](), chained=True)
    for value, wanted in zip(actual, expected, strict=True):
        np.testing.assert_array_equal(value, wanted)


def test_each_update_waits_for_the_one_before():
    optimizer = keras.optimizers.SGD(0.1)
    variables = _variables()
    optimizer.build(variables)

    @tf.function(autograph=False)
    def apply():
        with chained_updates(optimizer):
            optimizer.apply([tf.ones(v.shape) for v in variables], variables)

    graph = apply.get_concrete_function().graph
    updates = [
        operation
        for operation in graph.get_operations()
        if operation.type == "AssignSubVariableOp"
    ]
    assert len(updates) == len(variables)
    for earlier, later in zip(updates, updates[1:], strict=False):
        assert earlier in _ancestors(later)


def _ancestors(operation):
    found, queue = set(), [operation]
    while queue:
        current = queue.pop()
        for parent in (
            *current.control_inputs,
            *(t.op for t in current.inputs),
        ):
            if parent not in found:
                found.add(parent)
                queue.append(parent)
    return found


class Idle(keras.optimizers.SGD):
    """Forgets to write."""

    def update_step(self, gradient, variable, learning_rate):
        del gradient, variable, learning_rate


def test_update_that_writes_nothing_is_refused():
    with pytest.raises(RuntimeError, match="Idle.update_step wrote nothing"):
        _train(Idle(), chained=True)


def test_eager_updates_need_no_chain():
    variables, optimizer = _variables(), keras.optimizers.SGD(1.0)
    before = variables[1].numpy()
    with chained_updates(optimizer):
        optimizer.apply([tf.ones(v.shape) for v in variables], variables)
    np.testing.assert_array_equal(variables[1].numpy(), before - 1)


@pytest.mark.parametrize("fails", [False, True])
def test_optimizer_is_as_before(fails):
    inner = keras.optimizers.SGD(0.1)
    optimizer = keras.optimizers.LossScaleOptimizer(inner)
    before = dict(vars(inner)), dict(vars(optimizer))
    try:
        with chained_updates(optimizer):
            assert "update_step" in vars(inner)
            if fails:
                raise KeyError
    except KeyError:
        pass
    assert (vars(inner), vars(optimizer)) == before


def test_update_step_set_on_the_optimizer_is_kept():
    optimizer = keras.optimizers.SGD(1.0)
    calls = []
    stock = optimizer.update_step

    def own(gradient, variable, learning_rate):
        calls.append(variable)
        stock(gradient, variable, learning_rate)

    optimizer.update_step = own
    _train(optimizer, chained=True)
    assert len(calls) == 3
    assert optimizer.update_step is own
