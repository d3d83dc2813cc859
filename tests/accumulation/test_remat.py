"""Training with rematerialization is the training without it."""

import dataclasses

import keras
import numpy as np
import pytest

from keras_tfopt import AccumModel
from keras_tfopt import ExecutionPlan
from keras_tfopt import _compat
from keras_tfopt import remat
from keras_tfopt.accumulation.remat import keep_remat
from keras_tfopt.accumulation.remat import main_part
from keras_tfopt.training.remat import remove_remat
from tests import models
from tests.equivalence import assert_same
from tests.equivalence import run
from tests.models import fit

PAIRS = (("dense_1", "dropout"), "dense_2")


@keras.saving.register_keras_serializable("tests")
class Block(keras.layers.Layer):
    """A layer with arguments, state, a mask and losses of its own."""

    def __init__(self, seed, **kwargs):
        super().__init__(**kwargs)
        self.seed = seed
        self.dense = keras.layers.Dense(
            4, activity_regularizer=keras.regularizers.L2(0.03)
        )
        self.norm = keras.layers.BatchNormalization()
        self.dropout = keras.layers.Dropout(0.4, seed=seed)

    def call(self, inputs, scale=1.0, training=None):
        outputs = self.norm(self.dense(inputs), training=training)
        self.add_loss(0.1 * keras.ops.mean(keras.ops.square(outputs)))
        return inputs + scale * self.dropout(outputs, training=training)

    def get_config(self):
        return {**super().get_config(), "seed": self.seed}


def layers_in_a_row():
    inputs = keras.Input((4,))
    outputs = keras.layers.Dense(8, activation="tanh", name="dense")(inputs)
    outputs = keras.layers.Dense(
        8, name="dense_1", activity_regularizer=keras.regularizers.L2(0.1)
    )(outputs)
    outputs = keras.layers.BatchNormalization(name="norm")(outputs)
    outputs = keras.ops.tanh(outputs)
    outputs = keras.layers.Dropout(0.4, seed=1, name="dropout")(outputs)
    outputs = keras.layers.Dense(4, name="dense_2")(outputs) + inputs
    return inputs, keras.layers.Dense(1, name="dense_3")(outputs)


def functional(cls, how=None, compile_with=None, **settings):
    model = models.compiled(
        cls(*layers_in_a_row(), **settings), **(compile_with or {})
    )
    if how is not None:
        how(model)
    return model


def planned(recomputed):
    def change(model):
        plan = dataclasses.replace(model.plan, remat=recomputed)
        model.change_plan(plan, "test")

    return change


def kept(recomputed):
    return lambda model: keep_remat(model, recomputed)


class Blocks(keras.Model):
    """A subclassed model that calls a block twice."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.first = Block(1)
        self.second = Block(2)
        self.head = keras.layers.Dense(1)

    def call(self, inputs, training=None):
        outputs = self.first(inputs, scale=0.5, training=training)
        return self.head(self.second(self.second(outputs)))


def sequential(cls, how=None):
    del cls
    model = models.compiled(
        keras.Sequential([Block(1), Block(2), keras.layers.Dense(1)]),
        optimizer=models.momentum(0.01),
    )
    model.build((None, 4))
    if how is not None:
        how(model)
    return model


@pytest.fixture(scope="module")
def outcomes():
    """Runs without rematerialization, each made once."""
    made = {}

    def outcome(make, *args, **settings):
        key = repr((make.__name__, args, settings))
        if key not in made:
            made[key] = run(make, fit, *args, **settings)
        return made[key]

    return outcome


@pytest.mark.parametrize("recomputed", [2, PAIRS], ids=str)
def test_stock_fit_is_the_same(outcomes, recomputed):
    expected = outcomes(functional, keras.Model)
    actual = run(functional, fit, keras.Model, kept(recomputed))
    assert_same(actual, expected)


def test_the_plan_of_a_whole_batch_is_honored(outcomes):
    expected = outcomes(functional, keras.Model)
    actual = run(functional, fit, AccumModel, remat=2)
    assert actual.model.plan == ExecutionPlan(remat=2)
    assert_same(actual, expected)


def test_microbatches_are_the_same(outcomes):
    expected = outcomes(functional, AccumModel, microbatch_size=4)
    actual = run(functional, fit, AccumModel, planned(PAIRS), microbatch_size=4)
    assert_same(actual, expected)


def test_gathered_batches_are_the_same(outcomes):
    settings = {"gather_steps": 2, "microbatch_size": 4}
    expected = outcomes(functional, AccumModel, **settings)
    actual = run(functional, fit, AccumModel, remat=2, **settings)
    assert_same(actual, expected)


def test_xla_is_the_same():
    settings = {
        "accumulation_steps": 2,
        # XLA draws masks of its own, so that the comparison is with XLA.
        "compile_with": {"jit_compile": True},
    }

    def even(model):
        return fit(model, models.X[:20], models.Y[:20])

    expected = run(functional, even, AccumModel, **settings)
    actual = run(functional, even, AccumModel, remat=2, **settings)
    assert actual.model.plan.jit_compile
    assert_same(actual, expected, 3e-6)


def test_eager_execution_is_the_same():
    eager = {"compile_with": {"run_eagerly": True}}

    def short(model):
        return fit(model, models.X[:10], models.Y[:10], epochs=1)

    expected = run(functional, short, AccumModel, **eager)
    actual = run(functional, short, AccumModel, remat=2, **eager)
    assert_same(actual, expected)


def test_half_precision_is_the_same():
    try:

        def make(cls, **settings):
            keras.config.set_dtype_policy("mixed_float16")
            inputs = keras.Input((4,))
            outputs = keras.layers.Dense(8, activation="tanh")(inputs)
            outputs = keras.layers.BatchNormalization()(outputs)
            outputs = keras.layers.Dropout(0.4, seed=1)(outputs)
            outputs = keras.layers.Dense(1, dtype="float32")(outputs)
            return models.compiled(cls(inputs, outputs, **settings))

        expected = run(make, fit, AccumModel, accumulation_steps=2)
        actual = run(make, fit, AccumModel, accumulation_steps=2, remat=2)
    finally:
        keras.config.set_dtype_policy("float32")
    optimizer = actual.model.optimizer
    assert isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
    assert int(optimizer.iterations) > 3
    assert_same(actual, expected)


def test_a_sequential_model_is_the_same(outcomes):
    expected = outcomes(sequential, None)
    assert_same(run(sequential, fit, None, kept(1)), expected)


def test_subclassed_models_are_the_same():
    if not _compat.averages_activity_losses():
        pytest.skip("Keras 3.13 compares symbolic losses when it clears them")

    def make(cls, **settings):
        return models.compiled(AccumModel.from_model(cls(), **settings))

    with pytest.warns(UserWarning, match="add_loss"):
        expected = run(make, fit, Blocks, microbatch_size=4)
    with pytest.warns(UserWarning, match="add_loss") as warned:
        actual = run(make, fit, Blocks, microbatch_size=4, remat=1)
    # The layers that add losses are still those that are named.
    assert {str(w.message).partition("'")[2][:7] for w in warned} == {
        "block' ",
        "block_1",
    }
    assert_same(actual, expected)


def test_a_layer_is_the_same_in_any_model():
    def make(cls, recompute):
        inputs = keras.Input((4,))
        outputs = recompute(Block(1))(inputs, scale=0.5)
        outputs = recompute(keras.Sequential([Block(2)]))(outputs)
        return models.compiled(cls(inputs, keras.layers.Dense(1)(outputs)))

    expected = run(make, fit, keras.Model, lambda layer: layer)
    assert_same(run(make, fit, keras.Model, remat), expected)


def test_a_tokenizing_model_is_the_same():
    tokens = np.random.default_rng(0).integers(0, 9, (26, 5))

    def make(cls, **settings):
        inputs = keras.Input((5,), dtype="int32")
        outputs = keras.layers.Embedding(9, 8, mask_zero=True)(inputs)
        attention = keras.layers.MultiHeadAttention(2, 4, dropout=0.3, seed=2)
        outputs = outputs + attention(outputs, outputs)
        outputs = keras.layers.LayerNormalization()(outputs)
        outputs = keras.layers.GlobalAveragePooling1D()(outputs)
        return models.compiled(
            cls(inputs, keras.layers.Dense(1)(outputs), **settings),
            optimizer="adam",
        )

    def train(model):
        return fit(model, tokens)

    settings = {"microbatch_size": 4}
    expected = run(make, train, AccumModel, **settings)
    actual = run(make, train, AccumModel, remat=1, **settings)
    # Keys have no gradient but rounding errors, which Adam makes large.
    assert_same(actual, expected, ignore=("key/bias",))


def test_nothing_of_it_is_saved_or_cloned(tmp_path):
    model = functional(AccumModel, kept(2), accumulation_steps=2)
    fit(model)
    keras.utils.clear_session()
    config = functional(AccumModel, accumulation_steps=2).get_config()
    model.save(tmp_path / "m.keras")
    loaded = keras.saving.load_model(tmp_path / "m.keras")
    cloned = keras.models.clone_model(model)
    for other in (loaded, cloned):
        assert "_run_through_graph" not in vars(other)
    assert model.get_config() == config
    x = models.X[:3]
    np.testing.assert_allclose(loaded(x), model(x), rtol=1e-6, atol=1e-6)


def test_a_plan_is_saved_and_cloned(tmp_path):
    model = functional(AccumModel, remat=PAIRS)
    model.optimizer.build(model.trainable_variables)
    model.save(tmp_path / "m.keras")
    loaded = keras.saving.load_model(tmp_path / "m.keras")
    cloned = keras.models.clone_model(model)
    cloned.compile_from_config(model.get_compile_config())
    assert loaded.plan.remat == cloned.plan.remat == PAIRS


def test_removal_gives_keras_its_own_back():
    model = functional(keras.Model, kept((*PAIRS[:1], "dense")))
    assert "_run_through_graph" in vars(model)
    assert "call" in vars(model.get_layer("dense"))
    keep_remat(model, 1)
    assert "call" not in vars(model.get_layer("dense"))
    remove_remat(model)
    assert "_run_through_graph" not in vars(model)


def test_a_plan_leaves_no_trace_on_the_model():
    model = functional(AccumModel, remat=(*PAIRS[:1], "dense"))
    fit(model, epochs=1)
    assert "_run_through_graph" not in vars(model)
    assert "call" not in vars(model.get_layer("dense"))


def test_a_backbone_is_what_is_cut():
    backbone = keras.Model(*layers_in_a_row(), name="backbone")
    inputs = keras.Input((4,))
    outputs = keras.layers.Dense(1)(backbone(inputs))
    assert main_part(keras.Model(inputs, outputs)) is backbone
    assert main_part(backbone) is backbone


@pytest.mark.parametrize(
    ("recomputed", "message"),
    [
        (("nowhere",), "nowhere.*dense_1"),
        ((("dense_2", "dense"),), "dense_2.*Expected"),
        ((("dense", "norm"), ("dense_1", "dropout")), "behind the segment"),
    ],
)
def test_unknown_layers_are_refused(recomputed, message):
    model = functional(AccumModel)
    with pytest.raises(ValueError, match=message):
        planned(recomputed)(model)
    with pytest.raises(ValueError, match=message):
        keep_remat(model, recomputed)
    assert "call" not in vars(model.get_layer("dense"))


def test_layers_whose_calls_are_unknown_are_not_grouped():
    model = Blocks()
    model(models.X)
    with pytest.raises(ValueError, match="remat=2.*not functional.*Expected"):
        keep_remat(model, 2)
    with pytest.raises(ValueError, match="Only a functional model"):
        keep_remat(model, (("block", "block_1"),))


def test_steps_that_follow_no_plan_refuse_it():
    class Own(AccumModel):
        def train_step(self, data):
            return super().train_step(data)

    with pytest.raises(ValueError, match=r"remat=2 .*apply_remat"):
        functional(Own, remat=2)
