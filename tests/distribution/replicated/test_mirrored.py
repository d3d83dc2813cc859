"""Training on mirrored replicas equals training on one device."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_tfopt import AccumModel
from keras_tfopt import distribution
from tests import models
from tests.distribution.replicated.strategies import all_parts
from tests.distribution.replicated.strategies import mirrored
from tests.distribution.replicated.strategies import under
from tests.equivalence import assert_same
from tests.equivalence import run

# Batches of 9, 9 and 1 rows: parts that differ, and replicas without rows.
ROWS = 19


def train(model, x=models.X, y=models.Y, weights=models.WEIGHTS):
    """Trains batch by batch, which needs no distributed dataset."""
    logs = []
    for start in range(0, ROWS, 9):
        rows = slice(start, min(start + 9, ROWS))
        batch = keras.tree.map_structure(
            lambda array, rows=rows: None if array is None else array[rows],
            (x, y, weights),
        )
        logs.append(model.train_on_batch(*batch, return_dict=True))
    return models.as_history(logs)


def fit(model, **kwargs):
    arrays = models.X[:ROWS], models.Y[:ROWS]
    return models.fit(model, *arrays, **{"batch_size": 9, **kwargs})


def assert_equals_one_device(
    strategy, make, train=train, ignore=(), tolerance=1e-6, **settings
):
    expected = run(make, train, keras.Model)
    actual = run(under(strategy, make), train, AccumModel, **settings)
    assert_same(actual, expected, tolerance, ignore)
    variables = [*actual.model.variables, *actual.model.optimizer.variables]
    for first, *others in all_parts(actual.model, variables):
        for part in others:
            np.testing.assert_array_equal(part, first)
    return actual


@pytest.mark.parametrize(
    ("count", "operations", "settings"),
    [
        (2, "hierarchical_copy", {}),
        # After another number of devices in the same process.
        (3, None, {"microbatch_size": 2}),
    ],
    ids=str,
)
def test_strategies(count, operations, settings):
    strategy = mirrored(count, operations)
    assert_equals_one_device(strategy, models.regressor, **settings)


def test_fit(strategy):
    assert_equals_one_device(
        strategy, models.regressor, fit, accumulation_steps=2
    )


def test_steps_per_execution(strategy):
    def make(cls, **settings):
        return models.regressor(cls, {"steps_per_execution": 2}, **settings)

    def train(model):
        return fit(model, epochs=1)

    assert_equals_one_device(strategy, make, train, microbatch_size=2)


def test_validation_evaluation_and_prediction(strategy):
    results = []

    def train(model):
        history = fit(
            model,
            epochs=1,
            sample_weight=models.WEIGHTS[:ROWS],
            validation_data=(models.X[:11], models.Y[:11], models.WEIGHTS[:11]),
        )
        weighted = {"sample_weight": models.WEIGHTS, "verbose": 0}
        logs = model.evaluate(models.X, models.Y, batch_size=25, **weighted)
        outputs = model.predict(models.X, batch_size=25, verbose=0)
        results.append((logs, outputs))
        return history

    def make(cls, **settings):
        return models.regressor(cls, {"metrics": ["mape"]}, **settings)

    assert_equals_one_device(strategy, make, train)
    for expected, actual in zip(*results, strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("settings", [{}, {"microbatch_size": 2}], ids=str)
def test_remat(strategy, settings):
    made = assert_equals_one_device(
        strategy, models.regressor, fit, remat=1, **settings
    )
    plain = run(under(strategy, models.regressor), fit, AccumModel, **settings)
    # The backward pass multiplies once more what it has let go of.
    assert products(made.model) > products(plain.model)


def products(model):
    """Counts the matrix products of the step that a model has trained with."""
    (function,) = model.train_function._functions._functions.values()
    graph = function.graph.as_graph_def()
    nodes = [*graph.node]
    for called in graph.library.function:
        nodes += called.node_def
    return sum(node.op == "MatMul" for node in nodes)


@pytest.mark.parametrize(
    ("compile_with", "settings"),
    [
        ({"run_eagerly": True}, {}),
        ({"jit_compile": True}, {}),
        ({"jit_compile": True}, {"microbatch_size": 2}),
    ],
    ids=str,
)
def test_ways_to_run(strategy, compile_with, settings):
    def make(cls, **settings):
        return models.regressor(cls, compile_with, **settings)

    assert_equals_one_device(strategy, make, **settings)


def sequences(cls, loss, optimizer=None, **settings):
    inputs = keras.Input((6,), dtype="int32")
    hidden = keras.layers.Embedding(5, 3, mask_zero=True)(inputs)
    return models.compiled(
        cls(inputs, keras.layers.Dense(3)(hidden), **settings),
        optimizer=optimizer or keras.optimizers.SGD(0.1),
        loss=loss,
        weighted_metrics=["accuracy"],
    )


_RNG = np.random.default_rng(1)
# Ever more padding, so that each replica has other denominators.
_IS_TOKEN = np.arange(6) < 6 - np.arange(26)[:, None] % 6
TOKENS = _RNG.integers(1, 5, (26, 6)) * _IS_TOKEN
LABELS = _RNG.integers(0, 3, (26, 6))
TOKEN_WEIGHTS = _RNG.uniform(0.2, 3, (26, 6)).astype("float32")


@pytest.mark.parametrize(
    ("reduction", "ignore_class", "weights"),
    [
        ("sum_over_batch_size", 1, TOKEN_WEIGHTS),
        ("mean_with_sample_weight", None, TOKEN_WEIGHTS),
        ("sum", None, None),
    ],
    ids=["ignore_class", "mean_with_sample_weight", "sum"],
)
def test_masked_losses(strategy, reduction, ignore_class, weights):
    def make(cls, **settings):
        loss = keras.losses.SparseCategoricalCrossentropy(
            True, ignore_class=ignore_class, reduction=reduction
        )
        return sequences(cls, loss, **settings)

    assert_equals_one_device(
        strategy,
        make,
        lambda model: train(model, TOKENS, LABELS, weights),
        microbatch_size=2,
    )


def test_sparse_gradients_with_adam(strategy):
    def make(cls, **settings):
        loss = keras.losses.SparseCategoricalCrossentropy(True)
        optimizer = keras.optimizers.Adam(0.01, clipnorm=0.1)
        return sequences(cls, loss, optimizer, **settings)

    assert_equals_one_device(
        strategy, make, lambda model: train(model, TOKENS, LABELS, None)
    )


def test_several_outputs_and_regularizers(strategy):
    def make(cls, **settings):
        inputs = keras.Input((4,))
        hidden = keras.layers.Dense(
            5, "tanh", kernel_regularizer="l2", activity_regularizer="l2"
        )(inputs)
        outputs = {
            name: keras.layers.Dense(1, name=name)(hidden) for name in "ab"
        }
        return models.compiled(
            cls(inputs, outputs, **settings),
            loss={"a": "mse", "b": keras.losses.MeanAbsoluteError("sum")},
            loss_weights={"a": 2.0, "b": 0.1},
            weighted_metrics=None,
        )

    targets = {"a": models.Y, "b": 2 * models.Y}
    weights = {"a": models.WEIGHTS, "b": models.WEIGHTS[::-1]}
    assert_equals_one_device(
        strategy,
        make,
        lambda model: train(model, models.X, targets, weights),
        microbatch_size=2,
    )


def test_clipping(strategy):
    def make(cls, **settings):
        optimizer = keras.optimizers.AdamW(
            0.01, weight_decay=0.1, global_clipnorm=0.01, use_ema=True
        )
        return models.regressor(cls, {"optimizer": optimizer}, **settings)

    assert_equals_one_device(strategy, make)


def test_loss_scale_follows_all_replicas(strategy):
    x = models.X.copy()
    # Infinity in the second batch, on the second replica only.
    x[16] = np.inf

    def make(cls, **settings):
        optimizer = keras.optimizers.LossScaleOptimizer(
            keras.optimizers.SGD(0.05), dynamic_growth_steps=2
        )
        return models.regressor(cls, {"optimizer": optimizer}, **settings)

    actual = assert_equals_one_device(strategy, make, lambda m: train(m, x))
    assert actual.model.optimizer.iterations.numpy() == 2


def test_mixed_precision(strategy):
    def make(cls, **settings):
        keras.config.set_dtype_policy("mixed_float16")
        try:
            optimizer = keras.optimizers.LossScaleOptimizer(
                models.momentum(), initial_scale=2.0**8
            )
            return models.regressor(cls, {"optimizer": optimizer}, **settings)
        finally:
            keras.config.set_dtype_policy("float32")

    # Values in float16 are rounded in other places.
    assert_equals_one_device(strategy, make, tolerance=2e-3, microbatch_size=2)


def test_statistics_of_batch_normalization(strategy):
    # The layer's own inputs do not depend on how it normalizes.
    def make(cls, **settings):
        inputs = keras.Input((4,))
        hidden = keras.layers.BatchNormalization(momentum=0.5)(inputs)
        model = cls(inputs, keras.layers.Dense(1)(hidden), **settings)
        return models.compiled(model, weighted_metrics=None)

    def train_far_from_zero(model):
        train(model, models.X + 100 * models.Y)

    ignore = ("dense", "beta", "gamma", "loss")
    assert_equals_one_device(
        strategy, make, train_far_from_zero, ignore, microbatch_size=2
    )


def test_logs_of_a_model_that_makes_its_own(strategy):
    class Net(AccumModel):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(1)

        def call(self, inputs):
            return self.dense(inputs)

        def compute_metrics(self, x, y, y_pred, sample_weight=None):
            return {"largest": keras.ops.max(y)}

    with strategy.scope():
        model = models.compiled(Net(), weighted_metrics=None)
    with pytest.warns(UserWarning, match="last micro-batch"):
        logs = train(model).history
    # Parts of 5 and 4 rows.
    largest = 5 * models.Y[:5].max() + 4 * models.Y[5:9].max()
    assert logs["largest"][0] == pytest.approx(largest / 9)
    assert logs["largest"][2] == pytest.approx(models.Y[18, 0])


def test_dropout_per_example(strategy):
    def make(cls, **settings):
        inputs = keras.Input((4,))
        hidden = keras.layers.Dense(5, activation="tanh")(inputs)
        hidden = distribution.PerExampleDropout(0.4, seed=3)(hidden)
        model = cls(inputs, keras.layers.Dense(1)(hidden), **settings)
        return models.compiled(model)

    # Stock Keras counts calls, which we do not.
    ignore = ("seed_generator",)
    assert_equals_one_device(strategy, make, ignore=ignore)
    assert_equals_one_device(strategy, make, ignore=ignore, microbatch_size=2)


class Counter(keras.layers.Layer):
    """Counts forward passes, which nobody can merge."""

    def build(self, input_shape):
        self.calls = self.add_weight(
            shape=(), initializer="zeros", trainable=False
        )

    def call(self, inputs):
        self.calls.assign_add(1.0)
        return inputs


def counting(cls, **settings):
    inputs = keras.Input((4,))
    hidden = Counter()(inputs)
    model = cls(inputs, keras.layers.Dense(1)(hidden), **settings)
    return models.compiled(model, weighted_metrics=None)


def test_what_cannot_be_divided_keeps_the_stock_step(strategy):
    def train(model):
        return models.fit(model, models.X[:20], models.Y[:20], epochs=1)

    expected = run(counting, train, keras.Model)
    with pytest.warns(UserWarning, match="cannot be divided.*Counter"):
        actual = run(under(strategy, counting), train, AccumModel)
    assert_same(actual, expected)
    with pytest.raises(ValueError, match="Counter"):
        run(under(strategy, counting), train, AccumModel, microbatch_size=2)


def test_odd_number_of_replicas_with_hierarchical_copy():
    strategy = tf.distribute.MirroredStrategy(
        ["CPU:0", "CPU:1", "CPU:2"], tf.distribute.HierarchicalCopyAllReduce()
    )
    with strategy.scope():
        model = models.regressor(AccumModel)
    with pytest.raises(ValueError, match="3 replicas.*Expected: an even"):
        fit(model)
