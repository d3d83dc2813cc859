"""Training on mirrored replicas equals training on one device."""

import keras
import numpy as np
import pytest

from keras_tfopt import AccumModel
from tests import models
from tests.distribution.replicated.strategies import mirrored
from tests.distribution.replicated.strategies import under
from tests.equivalence import assert_same
from tests.equivalence import run


def fit(model, **kwargs):
    # Batches of 9, 9 and 8 rows: uneven parts on two and on three replicas.
    return models.fit(model, **{"batch_size": 9, **kwargs})


def fit_with_one_row(model):
    # The last batch leaves nothing for the second replica.
    return models.fit(model, models.X[:19], models.Y[:19], batch_size=9)


def assert_equals_one_device(
    strategy, make, fit=fit, cls=AccumModel, ignore=(), **settings
):
    expected = run(make, fit, keras.Model)
    actual = run(under(strategy, make), fit, cls, **settings)
    assert_same(actual, expected, ignore=ignore)
    assert_replicas_agree(actual.model)
    return actual


def assert_replicas_agree(model):
    for variable in [*model.variables, *model.optimizer.variables]:
        parts = model.distribute_strategy.experimental_local_results(
            variable.value
        )
        for part in parts[1:]:
            np.testing.assert_array_equal(part, parts[0], variable.path)


@pytest.mark.parametrize(
    ("count", "operations", "settings"),
    [
        (2, "hierarchical_copy", {}),
        (2, None, {"accumulation_steps": 2}),
        # After another number of devices in the same process.
        (3, None, {"microbatch_size": 2}),
    ],
    ids=str,
)
def test_uneven_batches(count, operations, settings):
    strategy = mirrored(count, operations)
    assert_equals_one_device(strategy, models.regressor, **settings)


def test_batch_of_one_row(strategy):
    assert_equals_one_device(strategy, models.regressor, fit_with_one_row)


def test_steps_per_execution(strategy):
    def make(cls, **settings):
        return models.regressor(cls, {"steps_per_execution": 2}, **settings)

    assert_equals_one_device(strategy, make, microbatch_size=2)


def test_run_eagerly(strategy):
    def make(cls, **settings):
        return models.regressor(cls, {"run_eagerly": True}, **settings)

    assert_equals_one_device(strategy, make, fit_with_one_row)


@pytest.mark.parametrize("settings", [{}, {"microbatch_size": 2}], ids=str)
def test_remat(strategy, settings):
    made = assert_equals_one_device(
        strategy, models.regressor, remat=1, **settings
    )
    # The backward pass multiplies once more what it has let go of.
    guard = made.model.train_function
    (function,) = guard._functions._functions.values()
    plain = run(under(strategy, models.regressor), fit, AccumModel, **settings)
    (other,) = plain.model.train_function._functions._functions.values()
    assert products(function) > products(other)


def products(function):
    graph = function.graph.as_graph_def()
    nodes = [*graph.node]
    for called in graph.library.function:
        nodes += called.node_def
    return sum(node.op == "MatMul" for node in nodes)


@pytest.mark.parametrize("settings", [{}, {"microbatch_size": 2}], ids=str)
def test_xla(strategy, settings):
    def make(cls, **settings):
        return models.regressor(cls, {"jit_compile": True}, **settings)

    assert_equals_one_device(strategy, make, fit_with_one_row, **settings)


def test_train_on_batch(strategy):
    def train(model):
        logs = [
            model.train_on_batch(*batch, return_dict=True)
            for batch in models.batches(7)
        ]
        logs.append(model.test_on_batch(models.X, models.Y, return_dict=True))
        return models.as_history(logs)

    assert_equals_one_device(strategy, models.regressor, train)


def test_validation_evaluation_and_prediction(strategy):
    results = []

    def train(model):
        history = fit(
            model,
            sample_weight=models.WEIGHTS,
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


def test_logs_of_each_batch(strategy):
    def train(model):
        seen = []
        callback = keras.callbacks.LambdaCallback(
            on_train_batch_end=lambda batch, logs: seen.append(dict(logs))
        )
        fit(model, callbacks=[callback])
        return models.as_history(seen)

    assert_equals_one_device(strategy, models.regressor, train)


def sequences(cls, loss, **settings):
    inputs = keras.Input((6,), dtype="int32")
    hidden = keras.layers.Embedding(5, 3, mask_zero=True)(inputs)
    return models.compiled(
        cls(inputs, keras.layers.Dense(3)(hidden), **settings),
        optimizer=keras.optimizers.SGD(0.1),
        loss=loss,
        weighted_metrics=["accuracy"],
    )


_RNG = np.random.default_rng(1)
# Ever more padding, so that each replica has other denominators.
TOKENS = _RNG.integers(1, 5, (26, 6)) * (
    np.arange(6) < 6 - np.arange(26)[:, None] % 6
)
LABELS = _RNG.integers(0, 3, (26, 6))
TOKEN_WEIGHTS = _RNG.uniform(0.2, 3, (26, 6)).astype("float32")


@pytest.mark.parametrize(
    ("reduction", "ignore_class", "weights"),
    [
        ("sum_over_batch_size", None, None),
        ("sum_over_batch_size", 1, TOKEN_WEIGHTS),
        ("mean_with_sample_weight", None, TOKEN_WEIGHTS),
        ("sum", 1, None),
    ],
    ids=str,
)
def test_masked_losses(strategy, reduction, ignore_class, weights):
    loss = keras.losses.SparseCategoricalCrossentropy(
        True, ignore_class=ignore_class, reduction=reduction
    )

    def train(model):
        return fit(model, x=TOKENS, y=LABELS, sample_weight=weights)

    def make(cls, **settings):
        return sequences(cls, loss, **settings)

    assert_equals_one_device(strategy, make, train, microbatch_size=2)


def test_sparse_gradients_with_adam(strategy):
    def make(cls, **settings):
        model = sequences(cls, "mse", **settings)
        loss = keras.losses.SparseCategoricalCrossentropy(True)
        model.compile(keras.optimizers.Adam(0.01, clipnorm=0.1), loss)
        return model

    def train(model):
        return fit(model, x=TOKENS, y=LABELS)

    assert_equals_one_device(strategy, make, train)


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

    def train(model):
        targets = {"a": models.Y, "b": 2 * models.Y}
        return fit(model, y=targets, sample_weight=models.WEIGHTS)

    assert_equals_one_device(strategy, make, train, microbatch_size=2)


@pytest.mark.parametrize(
    "arguments",
    [
        {"global_clipnorm": 0.01},
        {"clipnorm": 0.01, "weight_decay": 0.1, "use_ema": True},
    ],
    ids=str,
)
def test_clipping(strategy, arguments):
    def make(cls, **settings):
        optimizer = keras.optimizers.AdamW(0.01, **arguments)
        return models.regressor(cls, {"optimizer": optimizer}, **settings)

    assert_equals_one_device(strategy, make)


def test_loss_scale_follows_all_replicas(strategy):
    x = models.X.copy()
    # Infinity in one batch, on the second replica only.
    x[16] = np.inf

    def make(cls, **settings):
        optimizer = keras.optimizers.LossScaleOptimizer(
            keras.optimizers.SGD(0.05), dynamic_growth_steps=2
        )
        return models.regressor(cls, {"optimizer": optimizer}, **settings)

    def train(model):
        fit(model, x=x)

    actual = assert_equals_one_device(
        strategy, make, train, ignore=("absolute_error", "loss")
    )
    assert actual.model.optimizer.iterations.numpy() == 4
    assert np.isfinite(actual.model.get_weights()[0]).all()


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

    expected = run(make, fit, keras.Model)
    actual = run(under(strategy, make), fit, AccumModel, microbatch_size=2)
    # The order of sums shows in half precision.
    assert_same(actual, expected, tolerance=2e-3)
    assert_replicas_agree(actual.model)


def test_statistics_of_batch_normalization(strategy):
    # Its input does not depend on how it normalizes.
    def make(cls, **settings):
        inputs = keras.Input((4,))
        hidden = keras.layers.BatchNormalization(momentum=0.5)(inputs)
        return models.compiled(
            cls(inputs, keras.layers.Dense(1)(hidden), **settings)
        )

    def train(model):
        fit(model, x=models.X + 100 * models.Y)

    ignore = ("dense", "beta", "gamma", "loss", "absolute_error")
    assert_equals_one_device(
        strategy, make, train, ignore=ignore, microbatch_size=2
    )
    assert_equals_one_device(strategy, make, train, ignore=ignore)


def test_own_logs(strategy):
    class Net(AccumModel):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(1)

        def call(self, inputs):
            return self.dense(inputs)

        def compute_metrics(self, x, y, y_pred, sample_weight=None):
            return {"largest": keras.ops.max(y), "rows": keras.ops.shape(y)[0]}

    def make(cls, **settings):
        return models.compiled(Net(), weighted_metrics=None)

    seen = []
    callback = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: seen.append(dict(logs))
    )
    with pytest.warns(UserWarning, match="last micro-batch"):
        run(
            under(strategy, make),
            lambda m: fit(m, epochs=1, callbacks=[callback]),
            None,
        )
    # Parts of 5 and 4 rows.
    parts = models.Y[:5].max(), models.Y[5:9].max()
    assert seen[0]["largest"] == pytest.approx(
        (5 * parts[0] + 4 * parts[1]) / 9
    )
