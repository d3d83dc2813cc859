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
x = random.normal(size=(ROWS, 8)).astype("float32")
y = random.normal(size=(ROWS, 1)).astype("float32")


def perceptron(cls, **settings):
    keras.utils.set_random_seed(0)
    outputs = inputs = keras.Input((8,))
    for _ in range(DEPTH):
        outputs = keras.layers.Dense(WIDTH, activation="tanh")(outputs)
    model = cls(inputs, keras.layers.Dense(1)(outputs), **settings)
    model.compile("sgd", "mse")
    return model


def train(model, *extra, batch_size=ROWS, epochs=2):
    return model.fit(
        x, y, batch_size=batch_size, epochs=epochs, verbose=0, shuffle=False,
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
found = plan_memory(model, batch, max_utilization=0.7, remat=False)
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
del model, batch

# A row of which little fits.
inputs = outputs = keras.Input((2048, 64))
for _ in range(16):
    outputs = keras.layers.Dense(64, activation="tanh")(outputs)
outputs = keras.layers.GlobalAveragePooling1D()(outputs)
model = AccumModel(inputs, keras.layers.Dense(1)(outputs))
model.compile("sgd", "mse")
batch = tf.random.normal((4, 2048, 64)), tf.zeros((4, 1))
used = read_allocator_stats().current_bytes
found = plan_memory(model, batch, limit_bytes=used + 6 * 2**20)
result["remat"] = found.plan.remat is not None
result["remat_text"] = str(found)
result["remat_limit"] = found.limit_bytes
model.make_train_function()
result["remat_peak"] = peak_of_two_steps(found.plan)
roomy = plan_memory(model, batch, limit_bytes=used + 16 * 2**20)
result["roomy_text"] = str(roomy)
del model, batch, inputs, outputs

ahead = perceptron(keras.Model)
recovery = callbacks.OOMRecovery(plan_ahead=True, max_utilization=0.7)
train(ahead, recovery)
result["ahead"] = [e.reason for e in recovery.plan_events]

reference = perceptron(AccumModel, microbatch_size=256)
expected = train(reference)
result["planned_difference"] = difference(planned)
result["ahead_difference"] = difference(ahead.get_weights())

class Relief(keras.callbacks.Callback):
    # Holds memory, as another process would, until a later epoch.

    def on_train_begin(self, logs=None):
        self.ballast = [tf.zeros((2**18,)) for _ in range(24)]

    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 2:
            self.ballast = None


halves = {"batch_size": ROWS // 2, "epochs": 7}
reference = perceptron(AccumModel, microbatch_size=256)
expected = train(reference, **halves)
plain = perceptron(keras.Model)
recovery = callbacks.OOMRecovery(grow_after=4)
recovered = train(plain, recovery, Relief(), **halves)
result["recovered_loss"] = [recovered, expected]
result["recovered_difference"] = difference(plain.get_weights())
result["sizes"] = [e.new.microbatch_size for e in recovery.plan_events]
result["steps"] = [e.step for e in recovery.plan_events]
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
def test_rematerialization_is_planned_where_nothing_else_fits(outcome):
    assert outcome["remat"]
    assert outcome["remat_peak"] <= 1.1 * outcome["remat_limit"]
    assert "with remat" in outcome["remat_text"]
    assert "not even one row" in outcome["remat_text"]


@pytest.mark.slow
def test_rematerialization_is_weighed_against_smaller_microbatches(outcome):
    assert "rows a second" in outcome["roomy_text"]


@pytest.mark.slow
def test_planned_step_is_exact(outcome):
    assert outcome["planned_difference"] < 1e-6


@pytest.mark.slow
def test_recovery_is_exact(outcome):
    recovered, expected = outcome["recovered_loss"]
    assert recovered == pytest.approx(expected, abs=1e-6)
    assert outcome["recovered_difference"] < 1e-6


@pytest.mark.slow
def test_recovery_halves_again_and_grows_back(outcome):
    # The second size failed in the retry of the first step.
    assert outcome["sizes"][:2] == [1024, 512]
    assert outcome["steps"][:2] == [0, 0]
    assert outcome["sizes"][-1] is None


@pytest.mark.slow
def test_recovery_that_plans_ahead_never_runs_out(outcome):
    (reason,) = outcome["ahead"]
    assert "planned for" in reason
    assert outcome["ahead_difference"] < 1e-6


_SEARCH = """
import json

import tensorflow as tf

from keras_tfopt import AccumModel
from keras_tfopt import ExecutionPlan
from keras_tfopt import plan_memory
from keras_tfopt.benchmark.networks import NETWORKS
from keras_tfopt.memory import read_allocator_stats
from keras_tfopt.memory import reset_allocator_peak


def peak(model, batch, size):
    model.change_plan(ExecutionPlan(microbatch_size=size), "search")
    reset_allocator_peak()
    for _ in range(2):
        model.train_function(iter([batch]))
    return read_allocator_stats().peak_bytes


result = {}
for network in NETWORKS:
    if network.name not in NAMES:
        continue
    model = network.build(AccumModel)
    model.make_train_function()
    batch = tuple(tf.constant(part) for part in network.data(1))
    rows = network.batch_size
    needed = peak(model, batch, rows // 16), peak(model, batch, rows)
    limit = sum(needed) // 2
    found = plan_memory(model, batch, limit_bytes=limit, remat=False)
    best, size = 0, rows // 4
    while size < rows:
        if peak(model, batch, size) <= limit:
            best = size
        size = int(size * 1.1) + 1
    result[network.name] = [found.plan.microbatch_size, best, rows]
    del model, batch
print(json.dumps(result))
"""


# What runs side by side by chance scatters peaks: the workspaces of
# convolutions with many threads, and gradients that wait for one with few.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("names", "threads"),
    [(["MLP", "transformer"], "4"), (["convnet"], "1")],
)
def test_planned_size_is_close_to_that_of_an_exhaustive_search(names, threads):
    text = subprocesses.run_source(
        f"NAMES = {names}{_SEARCH}",
        TF_CPU_ALLOCATOR_USE_BFC="true",
        TF_CPU_BFC_MEM_LIMIT_IN_MB="4000",
        TF_NUM_INTEROP_THREADS=threads,
        TF_CPP_MIN_LOG_LEVEL="3",
        TF_ENABLE_ONEDNN_OPTS="0",
    )
    result = json.loads(text.splitlines()[-1])
    assert list(result) == names
    for size, best, rows in result.values():
        assert rows // 4 < best < rows
        assert best / 1.25 <= size <= best * 1.25


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
