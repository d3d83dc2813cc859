"""Masked tokens count as in stock Keras, wherever the batch is cut."""

import keras
from keras import ops
import numpy as np
import pytest

from tests.accumulation.branches import CLASSES
from tests.accumulation.branches import REDUCTIONS
from tests.accumulation.branches import ROWS
from tests.accumulation.branches import STEPS
from tests.accumulation.branches import classes
from tests.accumulation.branches import dense_branches
from tests.accumulation.branches import normal
from tests.accumulation.branches import trainer
from tests.accumulation.branches import uniform
from tests.equivalence import assert_equal_training

# The first two are two names of one reduction.
BRANCHES = REDUCTIONS[1:]


def padded():
    """Returns tokens of rows with different lengths, padded with 0.

    In batches of 10 rows and micro-batches of 4, the second micro-batch has no
    valid token, and neither has the second batch.
    """
    lengths = np.random.default_rng(3).integers(1, STEPS + 1, size=ROWS)
    lengths[4:8] = lengths[10:] = 0
    tokens = 1 + classes(ROWS, STEPS)
    return np.where(np.arange(STEPS) < lengths[:, None], tokens, 0)


def labels():
    """Returns classes, of which -1 is to be ignored; rows 8, 9 are all -1."""
    ignored = np.random.default_rng(4).random((ROWS, STEPS)) < 0.3
    ignored[8:10] = True
    return np.where(ignored, -1, classes(ROWS, STEPS))


def _embedding(mask_zero, ignore_class=None):
    """Returns a builder of a tagger with a branch for each reduction."""

    def make_model(cls, **settings):
        inputs = keras.Input((None,), dtype="int32")
        embedding = keras.layers.Embedding(
            CLASSES + 1, 4, mask_zero=mask_zero, embeddings_initializer="normal"
        )
        model = dense_branches(
            cls, inputs, BRANCHES, hidden=embedding(inputs), **settings
        )
        model.compile(
            keras.optimizers.SGD(0.1),
            {
                name: keras.losses.SparseCategoricalCrossentropy(
                    from_logits=True,
                    reduction=name,
                    ignore_class=ignore_class,
                )
                for name in BRANCHES
            },
        )
        return model

    return make_model


def _per_branch(array):
    return dict.fromkeys(BRANCHES, array)


@pytest.mark.parametrize(
    "weight_shape", [None, (ROWS, 1), (ROWS, STEPS)], ids=str
)
def test_mask_zero(weight_shape):
    weight = weight_shape and _per_branch(uniform(*weight_shape))
    fit = trainer(padded(), _per_branch(classes(ROWS, STEPS)), weight)
    assert_equal_training(_embedding(True), fit, microbatch_size=4)


def test_ignore_class():
    fit = trainer(1 + classes(ROWS, STEPS), _per_branch(labels()))
    make_model = _embedding(False, ignore_class=-1)
    assert_equal_training(make_model, fit, microbatch_size=2)


def test_mask_and_ignore_class_and_weights():
    weight = _per_branch(uniform(ROWS, STEPS))
    fit = trainer(padded(), _per_branch(labels()), weight)
    make_model = _embedding(True, ignore_class=-1)
    assert_equal_training(make_model, fit, microbatch_size=2)


def _masked_steps(loss, **kwargs):
    """Returns a builder of a model of sequences with missing steps."""

    def make_model(cls, **settings):
        inputs = keras.Input((STEPS, 4))
        hidden = keras.layers.Masking(-1.0)(inputs)
        hidden = keras.layers.SimpleRNN(3, return_sequences=True)(hidden)
        outputs = keras.layers.Dense(1)(hidden)
        model = cls(inputs, outputs, **settings)
        model.compile(keras.optimizers.SGD(0.01), loss, **kwargs)
        return model

    return make_model


def _missing_steps():
    x = normal(ROWS, STEPS, 4)
    x[np.random.default_rng(5).random((ROWS, STEPS)) < 0.4] = -1.0
    x[4:8] = -1.0
    return x


def test_masking_with_metrics():
    make_model = _masked_steps(
        "mse", metrics=["mae"], weighted_metrics=["mse", "mae"]
    )
    fit = trainer(
        _missing_steps(), normal(ROWS, STEPS, 1), uniform(ROWS, STEPS)
    )
    assert_equal_training(make_model, fit, microbatch_size=4)


def test_mask_without_reduction():
    # The masked values count in the mean that Keras reports.
    make_model = _masked_steps(keras.losses.MeanSquaredError(None))
    fit = trainer(_missing_steps(), normal(ROWS, STEPS, 1))
    assert_equal_training(make_model, fit, microbatch_size=4)


def test_values_with_a_dimension_more_than_the_mask():
    def loss(y_true, y_pred):
        return ops.square(y_true - y_pred)

    fit = trainer(
        _missing_steps(), normal(ROWS, STEPS, 1), uniform(ROWS, STEPS)
    )
    assert_equal_training(_masked_steps(loss), fit, microbatch_size=4)
