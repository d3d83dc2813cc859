import keras
import numpy as np
import pytest

from keras_tfopt.plan import ExecutionPlan
from keras_tfopt.training import plan_trial


def make_model():
    keras.utils.set_random_seed(0)
    inputs = keras.Input((4,))
    x = keras.layers.Dense(8, activation="tanh")(inputs)
    x = keras.layers.Dropout(0.5)(x)
    model = keras.Model(inputs, keras.layers.Dense(1)(x))
    model.compile("adam", "mse")
    return model


@pytest.fixture
def batch():
    generator = np.random.default_rng(0)
    x = generator.normal(size=(8, 4)).astype("float32")
    return x, x.sum(axis=1, keepdims=True)


def state_of(model):
    variables = [*model.variables, *model.optimizer.variables]
    return [np.array(variable) for variable in variables]


def test_losses_are_those_of_training(batch):
    stock = make_model()
    expected = [float(stock.train_on_batch(*batch)) for _ in range(3)]

    trial = plan_trial.PlanTrial(make_model(), batch, ExecutionPlan(), 3)

    np.testing.assert_allclose(trial.losses, expected, rtol=1e-6)


def test_leaves_no_trace(batch):
    model = make_model()
    model.fit(*batch, verbose=0)
    before = state_of(model)
    numbers = keras.random.uniform((2,), seed=keras.random.SeedGenerator(1))

    trials = [
        plan_trial.PlanTrial(model, batch, plan, 2)
        for plan in (ExecutionPlan(), ExecutionPlan(microbatch_size=3))
    ]
    plan_trial.measure_by_turns(trials, 2)

    for old, new in zip(before, state_of(model), strict=True):
        np.testing.assert_array_equal(old, new)
    assert all(trial.seconds > 0 for trial in trials)
    again = keras.random.uniform((2,), seed=keras.random.SeedGenerator(1))
    np.testing.assert_array_equal(numbers, again)


def test_difference_of_losses(batch):
    first, second = make_model(), make_model()
    second.layers[1].kernel.assign(2 * second.layers[1].kernel)
    trials = [
        plan_trial.PlanTrial(model, batch, ExecutionPlan(), 1)
        for model in (first, second)
    ]

    (ours,), (theirs,) = trials[0].losses, trials[1].losses
    expected = abs(ours - theirs) / abs(theirs)
    assert trials[0].loss_difference(trials[1]) == pytest.approx(expected)
    assert trials[0].loss_difference(trials[0]) == 0
