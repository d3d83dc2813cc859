"""Each reduction, weight and kind of loss equals stock Keras on the batch."""

import keras
from keras import ops
import pytest

from tests.accumulation.assumptions import assert_different_and_assumed
from tests.accumulation.assumptions import assert_equal_and_assumed
from tests.accumulation.branches import CLASSES
from tests.accumulation.branches import REDUCTIONS
from tests.accumulation.branches import ROWS
from tests.accumulation.branches import STEPS
from tests.accumulation.branches import classes
from tests.accumulation.branches import dense_branches
from tests.accumulation.branches import normal
from tests.accumulation.branches import one_hot
from tests.accumulation.branches import single
from tests.accumulation.branches import trainer
from tests.accumulation.branches import uniform
from tests.equivalence import assert_equal_training

X = normal(ROWS, 4)
Y = uniform(ROWS, CLASSES)


def _reductions(shape, names=REDUCTIONS):
    """Returns a builder of a model with a branch for each reduction."""

    def make_model(cls, **settings):
        model = dense_branches(cls, keras.Input(shape), names, **settings)
        model.compile(
            keras.optimizers.SGD(0.05),
            {name: keras.losses.MeanSquaredError(name) for name in names},
        )
        return model

    return make_model


@pytest.mark.parametrize("weight_shape", [None, (ROWS,), (ROWS, 1)], ids=str)
def test_reductions_of_vectors(weight_shape):
    weight = weight_shape and uniform(*weight_shape)
    fit = trainer(X, dict.fromkeys(REDUCTIONS, Y), weight)
    assert_equal_training(_reductions((4,)), fit, microbatch_size=4)


@pytest.mark.parametrize(
    "weight_shape", [None, (ROWS, 1), (ROWS, STEPS)], ids=str
)
def test_reductions_of_sequences(weight_shape):
    # The first two are two names of one reduction.
    names = REDUCTIONS[1:]
    x, y = normal(ROWS, STEPS, 4), uniform(ROWS, STEPS, CLASSES)
    weight = weight_shape and dict.fromkeys(names, uniform(*weight_shape))
    fit = trainer(x, dict.fromkeys(names, y), weight)
    make_model = _reductions((STEPS, 4), names)
    assert_equal_training(make_model, fit, accumulation_steps=3)


def test_class_weight():
    @single
    def make_model(model):
        model.compile(
            keras.optimizers.SGD(0.1),
            keras.losses.SparseCategoricalCrossentropy(
                from_logits=True, reduction="mean_with_sample_weight"
            ),
            weighted_metrics=["accuracy"],
        )

    fit = trainer(X, classes(ROWS), class_weight={0: 0.1, 1: 1.0, 2: 7.0})
    assert_equal_training(make_model, fit, microbatch_size=4)


def test_weights_that_are_all_zero():
    # Rows 4 to 8 are a micro-batch of the first batch, the second batch is
    # without any weight.
    weight = uniform(ROWS)
    weight[4:8] = weight[10:] = 0
    fit = trainer(X, dict.fromkeys(REDUCTIONS, Y), weight)
    assert_equal_training(_reductions((4,)), fit, microbatch_size=4)


@pytest.mark.parametrize("weight", [None, uniform(ROWS)], ids=["", "weighted"])
def test_no_reduction(weight):
    # Keras differentiates the sum of the values and reports their mean.
    @single
    def make_model(model):
        loss = keras.losses.MeanSquaredError(reduction="none")
        model.compile(keras.optimizers.SGD(0.01), loss)

    assert_equal_training(make_model, trainer(X, Y, weight), microbatch_size=4)


def test_no_reduction_of_several_outputs():
    # Their trackers count rows, those of other reductions count batches.
    def make_model(cls, **settings):
        inputs = keras.Input((4,))
        model = dense_branches(cls, inputs, ("a", "b"), **settings)
        losses = {
            "a": keras.losses.MeanSquaredError(None),
            "b": keras.losses.MeanAbsoluteError("none"),
        }
        model.compile(keras.optimizers.SGD(0.01), losses)
        return model

    fit = trainer(X, {"a": Y, "b": Y})
    assert_equal_training(make_model, fit, microbatch_size=4)


LOSSES = {
    "huber": keras.losses.Huber(0.5),
    "cosine": keras.losses.CosineSimilarity(),
    "poisson": keras.losses.Poisson(reduction="sum"),
    "binary": keras.losses.BinaryCrossentropy(label_smoothing=0.1),
    "focal": keras.losses.CategoricalFocalCrossentropy(
        reduction="mean_with_sample_weight"
    ),
    "name": "categorical_hinge",
    "function": keras.losses.kl_divergence,
}


def test_losses_of_keras():
    def make_model(cls, **settings):
        model = dense_branches(
            cls, keras.Input((4,)), LOSSES, activation="softmax", **settings
        )
        model.compile(keras.optimizers.SGD(0.01), LOSSES)
        return model

    fit = trainer(X, dict.fromkeys(LOSSES, one_hot(ROWS)), uniform(ROWS))
    assert_equal_training(make_model, fit, microbatch_size=4)


def test_ctc():
    def compile_model(model):
        model.compile(keras.optimizers.SGD(0.01), keras.losses.CTC())

    make_model = single(compile_model, shape=(STEPS, 4))

    labels = 1 + classes(ROWS, 2) % (CLASSES - 1)
    fit = trainer(normal(ROWS, STEPS, 4), labels)
    assert_equal_training(make_model, fit, microbatch_size=4)


def per_sample(y_true, y_pred):
    """One number per example."""
    return ops.max(ops.abs(y_true - y_pred), axis=-1)


def per_element(y_true, y_pred):
    """One number per entry, which Keras averages as well."""
    return ops.abs(y_true - y_pred) ** 1.5


class Scaled(keras.losses.Loss):
    """A loss class with its own parameters."""

    def __init__(self, factor, **kwargs):
        super().__init__(**kwargs)
        self.factor = factor

    def call(self, y_true, y_pred):
        return self.factor * ops.mean(ops.square(y_true - y_pred), axis=-1)


def test_own_losses():
    losses = {
        "sample": per_sample,
        "element": per_element,
        "scaled": Scaled(0.3),
        "scaled_sum": Scaled(0.3, reduction="sum"),
    }

    def make_model(cls, **settings):
        model = dense_branches(cls, keras.Input((4,)), losses, **settings)
        model.compile(keras.optimizers.SGD(0.01), losses)
        return model

    fit = trainer(X, dict.fromkeys(losses, Y))
    assert_equal_training(make_model, fit, microbatch_size=4)


def scalar_mean(y_true, y_pred):
    """One number for the batch, a mean over its rows."""
    return ops.mean(ops.square(y_true - y_pred))


def scalar_sum(y_true, y_pred):
    """One number for the batch that is no mean."""
    return ops.sum(ops.square(y_true - y_pred))


class OwnCall(keras.losses.Loss):
    """A loss that does its own reduction."""

    def __call__(self, y_true, y_pred, sample_weight=None):
        del sample_weight
        return ops.mean(ops.abs(y_true - y_pred))


def _compiled_with(loss):
    @single
    def make_model(model):
        model.compile(keras.optimizers.SGD(0.01), loss)

    return make_model


@pytest.mark.parametrize("loss", [scalar_mean, OwnCall()], ids=["", "class"])
def test_number_for_a_batch_is_taken_for_a_mean(loss):
    assert_equal_and_assumed(
        _compiled_with(loss),
        trainer(X, Y),
        "returns one number for a whole batch; it is taken for a mean",
    )


def per_class(y_true, y_pred):
    """One number per class, none per row."""
    return ops.max(ops.square(y_true - y_pred), axis=0)


@pytest.mark.parametrize(
    "loss",
    [scalar_sum, per_class, keras.losses.Dice()],
    ids=["sum", "per_class", "dice"],
)
def test_number_for_a_batch_that_is_no_mean_warns(loss):
    assert_different_and_assumed(
        _compiled_with(loss),
        trainer(X, Y),
        "returns one number for a whole batch; it is taken for a mean",
    )
