"""Planning for memory, and recovery, on the real allocator under a limit."""

import json

import pytest

from keras_tfopt import AccumModel
from keras_tfopt import plan_memory
from tests import models
from tests import subprocesses

# The whole batch needs some 57 MiB, half of it 35: every size that fails costs
# the allocator's wait of more than ten seconds.
LIMIT_MIB = 50

_SOURCE = """
import json

import keras
import numpy as np
import tensorflow as tf

from keras_tfopt import AccumModel
from keras_tfopt import callbacks
from keras_tfopt import plan_memory
from keras_tfopt.memory import read_allocator_stats
from keras_tfopt.memory import reset_allocator_peak
from tests.equivalence import state_of

ROWS, WIDTH, DEPTH = 4096, 256, 12
random = np.random.default_rng(0)
x = random.normal(size=(ROWS, WIDTH)).astype("float32")
y = random.normal(size=(ROWS, 1)).astype("float32")


def perceptron(cls, **settings):
    keras.utils.set_random_seed(0)
    outputs = inputs = keras.Input((WIDTH,))
    for _ in range(DEPTH):
        outputs = keras.layers.Dense(WIDTH, activation="tanh")(outputs)
    model = cls(inputs, keras.layers.Dense(1)(outputs), **settings)
    model.compile("sgd", "mse")
    return model


def train(model, *extra):
    return model.fit(
        x, y, batch_size=ROWS, epochs=2, verbose=0, shuffle=False,
        callbacks=list(extra),
    ).history["loss"]


def difference(weights):
    pairs = zip(weights, reference.get_weights(), strict=True)
    return max(float(np.abs(a - b).max()) for a, b in pairs)


# Plans before the first `fit` and the first failure: the iterators that Keras
# leaves behind hold batches, and what a failed step has left is not counted.
result = {}
model = perceptron(AccumModel)
model.optimizer.build(model.trainable_variables)
batch = tf.constant(x), tf.constant(y)
before = state_of(model)
found = plan_memory(model, batch, max_utilization=0.7)
after = state_of(model)
result["unchanged"] = all(
    np.array_equal(after[name], value) for name, value in before.items()
)
result["limit"] = found.limit_bytes
result["size"] = found.plan.microbatch_size
result["text"] = str(found)
model.make_train_function()


def peak_of_two_steps(plan):
    model.change_plan(plan, "planned")
    reset_allocator_peak()
    for _ in range(2):
        model.train_function(iter([batch]))
    return read_allocator_stats().peak_bytes


result["peak"] = peak_of_two_steps(found.plan)
planned = model.get_weights()
larger = type(found.plan)(microbatch_size=int(result["size"] * 1.3))
try:
    result["larger_peak"] = peak_of_two_steps(larger)
except tf.errors.ResourceExhaustedError:
    result["larger_peak"] = found.limit_bytes + 1
del model, batch

ahead = perceptron(keras.Model)
recovery = callbacks.OOMRecovery(plan_ahead=True, max_utilization=0.7)
train(ahead, recovery)
result["ahead"] = [e.reason for e in recovery.plan_events]

reference = perceptron(AccumModel, microbatch_size=256)
expected = train(reference)
result["planned_difference"] = difference(planned)
result["ahead_difference"] = difference(ahead.get_weights())

stock = perceptron(keras.Model)
try:
    train(stock)
except tf.errors.ResourceExhaustedError as error:
    result["stock"] = str(error)
del stock

plain = perceptron(keras.Model)
recovery = callbacks.OOMRecovery()
recovered = train(plain, recovery)
result["recovered_loss"] = [recovered, expected]
result["recovered_difference"] = difference(plain.get_weights())
result["sizes"] = [e.new.microbatch_size for e in recovery.plan_events]

print(json.dumps(result))
"""


@pytest.fixture(scope="module")
def outcome():
    text = subprocesses.run_source(
        _SOURCE,
        TF_CPU_ALLOCATOR_USE_BFC="true",
        TF_CPU_BFC_MEM_LIMIT_IN_MB=str(LIMIT_MIB),
        TF_CPP_MIN_LOG_LEVEL="3",
        # Kernels of oneDNN crash where an allocation fails.
        TF_ENABLE_ONEDNN_OPTS="0",
    )
    return json.loads(text.splitlines()[-1])


@pytest.mark.slow
def test_planning_changes_nothing(outcome):
    assert outcome["unchanged"]


@pytest.mark.slow
def test_planned_step_stays_below_the_limit(outcome):
    found = outcome
    assert found["limit"] == int(LIMIT_MIB * 2**20 * 0.7)
    # Peaks of one step scatter by up to a tenth.
    assert found["peak"] <= 1.1 * found["limit"]
    assert f"chosen: {found['size']}" in found["text"]


@pytest.mark.slow
def test_planned_step_is_close_to_the_best(outcome):
    found = outcome
    assert found["larger_peak"] > found["limit"]


@pytest.mark.slow
def test_planned_step_is_exact(outcome):
    assert outcome["planned_difference"] < 1e-6


@pytest.mark.slow
def test_stock_keras_runs_out_of_memory(outcome):
    assert "OOM when allocating" in outcome["stock"]


@pytest.mark.slow
def test_recovery_is_exact(outcome):
    recovered, expected = outcome["recovered_loss"]
    assert recovered == pytest.approx(expected, abs=1e-6)
    assert outcome["recovered_difference"] < 1e-6
    assert outcome["sizes"][0] == 2048


@pytest.mark.slow
def test_recovery_that_plans_ahead_never_runs_out(outcome):
    (reason,) = outcome["ahead"]
    assert "planned for" in reason
    assert outcome["ahead_difference"] < 1e-6


@pytest.mark.parametrize(
    "arguments",
    [{"max_utilization": 0}, {"max_utilization": 2}, {"limit_bytes": 0}],
    ids=str,
)
def test_bad_arguments(arguments):
    model = models.regressor(AccumModel)
    name = next(iter(arguments))
    with pytest.raises(ValueError, match=f"{name}.*Received.*Expected"):
        plan_memory(model, (models.X, models.Y), **arguments)
