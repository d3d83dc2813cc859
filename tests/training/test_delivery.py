"""Training equals stock Keras however the batches are delivered."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_tfopt import AccumModel
from tests.equivalence import assert_equal_training
from tests.equivalence import assert_same
from tests.equivalence import run
from tests.models import CLASSES
from tests.models import WEIGHTS
from tests.models import AtBatch
from tests.models import Interruption
from tests.models import X
from tests.models import Y
from tests.models import as_history
from tests.models import batches
from tests.models import compiled
from tests.models import fit
from tests.models import interrupt
from tests.models import momentum
from tests.models import network
from tests.models import regressor
from tests.models import stock_outcome
from tests.models import stop
from tests.models import streamed

SPLIT = {"microbatch_size": 4}
BOTH = pytest.mark.parametrize("settings", [{}, SPLIT], ids=["whole", "split"])
# Keras warns at the end of each stream whose length it does not know.
unknown_length = pytest.mark.filterwarnings("ignore:Your input ran out of data")


class Batches(keras.utils.PyDataset):
    """The batches of `X` and `Y`."""

    def __len__(self):
        return len(batches())

    def __getitem__(self, index):
        return batches()[index]


def dataset():
    return tf.data.Dataset.from_tensor_slices((X, Y)).batch(10)


def unknown_dataset():
    signature = (
        tf.TensorSpec((None, 4), tf.float32),
        tf.TensorSpec((None, 1), tf.float32),
    )
    return tf.data.Dataset.from_generator(batches, output_signature=signature)


def generator():
    while True:
        yield from batches()


DELIVERIES = {
    "numpy": fit,
    "known": lambda model: fit(model, dataset(), None),
    "unknown": lambda model: fit(model, unknown_dataset(), None),
    "infinite": lambda model: fit(
        model, dataset().repeat(), None, steps_per_epoch=3
    ),
    "generator": lambda model: fit(model, generator(), None, steps_per_epoch=3),
    "py_dataset": lambda model: fit(model, Batches(), None),
}


@unknown_length
@pytest.mark.parametrize("name", DELIVERIES)
def test_split_batches_of_any_origin(name):
    actual = run(regressor, DELIVERIES[name], AccumModel, **SPLIT)
    assert_same(actual, stock_outcome())
    assert int(actual.model.optimizer.iterations) == 6


@unknown_length
@pytest.mark.parametrize("name", ["numpy", "unknown"])
def test_whole_batches_of_any_origin(name):
    actual = run(regressor, DELIVERIES[name], AccumModel)
    assert_same(actual, stock_outcome())


@BOTH
def test_run_eagerly(settings):
    actual = run(
        regressor,
        fit,
        AccumModel,
        compile_with={"run_eagerly": True},
        **settings,
    )
    assert_same(actual, stock_outcome())


@unknown_length
@pytest.mark.parametrize("name", ["numpy", "unknown"])
def test_steps_per_execution_that_do_not_divide_the_epoch(name):
    actual = run(
        regressor,
        DELIVERIES[name],
        AccumModel,
        compile_with={"steps_per_execution": 2},
        **SPLIT,
    )
    assert_same(actual, stock_outcome())


@BOTH
def test_steps_per_execution_that_do_not_divide_steps_per_epoch(settings):
    seen = {}

    def train(model):
        record = keras.callbacks.LambdaCallback(
            on_train_batch_end=lambda batch, logs: seen.setdefault(
                type(model), []
            ).append(batch)
        )
        return fit(
            model,
            dataset().repeat(),
            None,
            steps_per_epoch=3,
            callbacks=[record],
        )

    def make_model(cls, **settings):
        return regressor(cls, {"steps_per_execution": 2}, **settings)

    outcome = assert_equal_training(make_model, train, **settings)
    stock_batches, accum_batches = seen.values()
    assert accum_batches == stock_batches
    # Keras executes whole executions: four steps in an epoch of three.
    assert int(outcome.model.optimizer.iterations) == 8


def test_validation_and_class_weight():
    def make_model(cls, **settings):
        inputs = keras.Input((4,))
        model = cls(inputs, keras.layers.Dense(3)(inputs), **settings)
        model.compile(
            momentum(),
            keras.losses.SparseCategoricalCrossentropy(
                from_logits=True, reduction="mean_with_sample_weight"
            ),
            metrics=["accuracy"],
            weighted_metrics=["accuracy"],
        )
        return model

    def train(model):
        return fit(
            model,
            y=CLASSES,
            validation_split=0.25,
            validation_batch_size=4,
            class_weight={0: 0.5, 1: 2.0, 2: 4.0},
        )

    outcome = assert_equal_training(make_model, train, **SPLIT)
    assert "val_weighted_accuracy" in outcome.history


def test_weights_and_their_absence_one_after_the_other():
    weighted = tf.data.Dataset.from_tensor_slices((X, Y, WEIGHTS)).batch(10)

    def train(model):
        fit(model, weighted, None, epochs=1)
        fit(model, dataset(), None, epochs=1)
        return fit(
            model,
            weighted,
            None,
            epochs=1,
            validation_data=dataset(),
            validation_freq=1,
        )

    assert_equal_training(regressor, train, **SPLIT)


def test_shuffling_follows_the_seed():
    def train(model):
        return fit(model, shuffle=True)

    outcome = assert_equal_training(regressor, train, **SPLIT)
    with pytest.raises(AssertionError):
        assert_same(outcome, stock_outcome())


@BOTH
def test_fit_again_after_an_epoch_that_was_not_finished(settings):
    def train(model):
        stopped = fit(model, callbacks=[AtBatch(1, stop)])
        assert len(stopped.epoch) == 1
        assert int(model.optimizer.iterations) == 2
        with pytest.raises(Interruption):
            fit(model, callbacks=[AtBatch(1, interrupt)])
        assert int(model.optimizer.iterations) == 4
        return fit(model)

    assert_equal_training(regressor, train, **settings)


def test_recompiling_between_fits():
    def train(model):
        fit(model, epochs=1)
        model.layers[1].trainable = False
        model.compile(keras.optimizers.Adam(0.01), "mae", metrics=["mse"])
        frozen = model.layers[1].get_weights()
        fit(model, epochs=1)
        np.testing.assert_array_equal(
            model.layers[1].get_weights()[0], frozen[0]
        )
        model.layers[1].trainable = True
        model.compile(momentum(), "mse", metrics=["mae"])
        history = fit(model, epochs=1)
        assert np.any(model.layers[1].get_weights()[0] != frozen[0])
        return history

    assert_equal_training(regressor, train, **SPLIT)


@BOTH
def test_train_on_batch(settings):
    def train(model):
        logs = []
        for rows, kwargs in (
            (10, {}),
            (7, {}),
            (1, {}),
            (10, {"sample_weight": WEIGHTS[:10]}),
            (6, {"sample_weight": WEIGHTS[:6]}),
        ):
            logs.append(
                model.train_on_batch(
                    X[:rows], Y[:rows], return_dict=True, **kwargs
                )
            )
        labels = (Y[:10] > 0).astype("float32")
        values = model.train_on_batch(
            X[:10], labels, class_weight={0: 0.3, 1: 2.0}
        )
        logs.append(dict(zip(logs[0], values, strict=True)))
        return as_history(logs)

    outcome = assert_equal_training(regressor, train, **settings)
    assert int(outcome.model.optimizer.iterations) == 6


def test_sequence_lengths_that_vary():
    rng = np.random.default_rng(1)
    shapes = [(10, 3, 4), (10, 6, 4), (6, 5, 4)]
    sequences = [rng.normal(size=shape).astype("float32") for shape in shapes]
    parts = [(sequence, sequence[..., :1].sum(1)) for sequence in sequences]

    def make_model(cls, **settings):
        inputs = keras.Input((None, 4))
        hidden = keras.layers.Dense(5, activation="tanh")(inputs)
        pooled = keras.layers.GlobalAveragePooling1D()(hidden)
        outputs = keras.layers.Dense(1)(pooled)
        return compiled(cls(inputs, outputs, **settings))

    def train(model):
        for part in parts[:2]:
            model.train_on_batch(*part)
        return fit(model, streamed(parts), None)

    assert_equal_training(make_model, train, accumulation_steps=3)


@pytest.mark.parametrize("settings", [{"accumulation_steps": 3}, SPLIT])
def test_batches_without_rows_are_steps_of_zero_gradients(settings):
    parts = [(X[:0], Y[:0]), (X[:9], Y[:9]), (X[:0], Y[:0])]

    def train(model):
        return fit(model, streamed(parts), None)

    outcome = assert_equal_training(regressor, train, **settings)
    assert int(outcome.model.optimizer.iterations) == 6


@pytest.mark.filterwarnings(
    "ignore:__array__ implementation:DeprecationWarning"
)
def test_callbacks_of_keras(tmp_path):
    checkpoints = {}

    def train(model):
        path = tmp_path / f"{type(model).__name__}.weights.h5"
        checkpoints[type(model)] = path
        history = fit(
            model,
            epochs=6,
            validation_data=(X[:8], -Y[:8]),
            callbacks=[
                keras.callbacks.LearningRateScheduler(
                    lambda epoch, rate: rate * 0.5 if epoch == 1 else rate
                ),
                keras.callbacks.ReduceLROnPlateau(
                    "loss", factor=0.1, patience=1, min_delta=10.0
                ),
                keras.callbacks.EarlyStopping(
                    patience=2, restore_best_weights=True
                ),
                keras.callbacks.ModelCheckpoint(
                    path, save_best_only=True, save_weights_only=True
                ),
            ],
        )
        return history

    outcome = assert_equal_training(regressor, train, **SPLIT)
    rates = outcome.history["learning_rate"]
    assert len(rates) < 6
    assert rates[0] > rates[1] > rates[-1]
    saved = []
    for path in checkpoints.values():
        model = network(keras.Model)
        model.load_weights(path)
        saved.append(model.get_weights())
    assert len(saved) == 2
    for actual, expected in zip(*saved, strict=True):
        np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-6)
