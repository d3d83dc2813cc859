"""Several outputs: losses, weights, masks, trackers and metrics of each."""

import keras
import pytest
import tensorflow as tf

from tests.accumulation.branches import BATCH
from tests.accumulation.branches import CLASSES
from tests.accumulation.branches import ROWS
from tests.accumulation.branches import STEPS
from tests.accumulation.branches import classes
from tests.accumulation.branches import normal
from tests.accumulation.branches import one_hot
from tests.accumulation.branches import trainer
from tests.accumulation.branches import uniform
from tests.equivalence import assert_equal_training


def _text_and_image(cls, **settings):
    """A masked sequence and a vector, with layers that both depend on."""
    tokens = keras.Input((STEPS,), dtype="int32", name="tokens")
    image = keras.Input((4,), name="image")
    hidden = keras.layers.Embedding(CLASSES + 1, 4, mask_zero=True)(tokens)
    vector = keras.layers.Dense(4, activation="tanh")(image)
    both = keras.layers.Add()(
        [hidden, keras.layers.RepeatVector(STEPS)(vector)]
    )
    outputs = {
        "tags": keras.layers.Dense(CLASSES, name="tags")(both),
        "score": keras.layers.Dense(1, name="score")(vector),
    }
    model = cls({"tokens": tokens, "image": image}, outputs, **settings)
    model.compile(
        keras.optimizers.SGD(0.1),
        {
            "tags": keras.losses.SparseCategoricalCrossentropy(
                from_logits=True, ignore_class=-1
            ),
            "score": keras.losses.Huber(reduction="mean_with_sample_weight"),
        },
        loss_weights={"tags": 0.3, "score": 2.0},
        metrics={"score": ["mae", "mse"]},
        weighted_metrics={
            "tags": [keras.metrics.SparseCategoricalAccuracy(name="acc")],
            "score": ["mae"],
        },
    )
    return model


def test_dict_with_masks_and_weights():
    tokens = classes(ROWS, STEPS)
    tokens[4:8] = 0
    x = {"tokens": tokens, "image": normal(ROWS, 4)}
    y = {"tags": classes(ROWS, STEPS) - 1, "score": normal(ROWS, 1)}
    weight = {"tags": uniform(ROWS, STEPS), "score": uniform(ROWS)}
    outcome = assert_equal_training(
        _text_and_image, trainer(x, y, weight), microbatch_size=4
    )
    assert set(outcome.history) == {
        "loss", "tags_loss", "score_loss", "score_mae", "score_mse",
        "tags_acc", "score_weighted_mae",
    }  # fmt: skip


def _list_of_three(cls, **settings):
    inputs = keras.Input((4,))
    hidden = keras.layers.Dense(4, activation="tanh")(inputs)
    outputs = [
        keras.layers.Dense(CLASSES, activation="softmax", name="a")(hidden),
        keras.layers.Dense(2, name="b")(hidden),
        keras.layers.Dense(1, name="c")(hidden),
    ]
    model = cls(inputs, outputs, **settings)
    model.compile(
        keras.optimizers.SGD(0.1),
        [keras.losses.CategoricalCrossentropy(), None, "mse"],
        loss_weights=[0.5, None, 2.0],
        metrics=[["accuracy"], None, ["mae"]],
        weighted_metrics=[["accuracy"], None, None],
    )
    return model


LIST_TARGETS = [one_hot(ROWS), normal(ROWS, 2), normal(ROWS, 1)]


@pytest.mark.filterwarnings("ignore:Gradients do not exist")
def test_list_with_an_output_without_loss():
    # The same weights for all outputs.
    fit = trainer(normal(ROWS, 4), LIST_TARGETS, uniform(ROWS))
    outcome = assert_equal_training(_list_of_three, fit, accumulation_steps=3)
    assert {"a_loss", "c_loss", "a_accuracy"} <= set(outcome.history)
    assert "b_loss" not in outcome.history


class _Subclassed:
    """What a subclass of any model class consists of."""

    def build(self, input_shape):
        self.left = keras.layers.Dense(1)
        self.right = keras.layers.Dense(2)
        self.left.build(input_shape)
        self.right.build(input_shape)

    def call(self, inputs):
        return self.left(inputs), self.right(inputs)


def test_subclass_with_one_loss_for_all_outputs():
    def make_model(cls, **settings):
        model = type("Net", (_Subclassed, cls), {})(**settings)
        model.compile(keras.optimizers.SGD(0.1), "mse")
        return model

    y = (normal(ROWS, 1), normal(ROWS, 2))
    fit = trainer(normal(ROWS, 4), y)
    assert_equal_training(make_model, fit, microbatch_size=4)


@pytest.mark.filterwarnings("ignore:Gradients do not exist")
@pytest.mark.parametrize("drop_remainder", [True, False])
def test_trackers_with_datasets(drop_remainder):
    # Keras weights batches with their rows if all have the same, else not.
    rows = 2 * BATCH if drop_remainder else ROWS
    data = (normal(rows, 4), (one_hot(rows), normal(rows, 2), normal(rows, 1)))

    def fit(model):
        dataset = tf.data.Dataset.from_tensor_slices(data)
        dataset = dataset.batch(BATCH, drop_remainder=drop_remainder)
        return model.fit(dataset, epochs=2, shuffle=False, verbose=0)

    assert_equal_training(_list_of_three, fit, microbatch_size=4)


def test_several_losses_of_one_output():
    # Keras trains with the first of them.
    def make_model(cls, **settings):
        inputs = keras.Input((4,))
        model = cls(inputs, keras.layers.Dense(1)(inputs), **settings)
        model.compile(keras.optimizers.SGD(0.1), ["mae", "mse"])
        return model

    fit = trainer(normal(ROWS, 4), normal(ROWS, 1))
    assert_equal_training(make_model, fit, microbatch_size=4)
