"""Training goes on after out-of-memory errors as if there had been none."""

import json
import logging

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_tfopt import AccumModel
from keras_tfopt import ExecutionPlan
from keras_tfopt import OutOfMemoryError
from keras_tfopt import callbacks
from tests import builders
from tests import models
from tests import subprocesses
from tests.equivalence import assert_same
from tests.equivalence import run
from tests.equivalence import unchanged


class Memory:
    """Room for some rows; more of them raise what an allocator raises."""

    def __init__(self):
        self.rows = None
        self.failures = 0

    def __call__(self, array):
        if self.rows is not None and len(array) > self.rows:
            self.failures += 1
            raise MemoryError("no room")


@pytest.fixture
def memory():
    return Memory()


def _maker(memory, **compile_with):
    def make(cls, **settings):
        outputs = inputs = keras.Input((4,))
        outputs = keras.layers.Dense(5, activation="tanh")(outputs)
        outputs = builders.Probe(memory)(outputs)
        model = cls(inputs, keras.layers.Dense(1)(outputs), **settings)
        return models.compiled(model, **compile_with)

    return make


def _fit(memory, rows, recovery, **kwargs):
    def fit(model):
        memory.rows = rows
        return models.fit(model, callbacks=[recovery], **kwargs)

    return fit


@pytest.mark.parametrize("cls", [keras.Model, AccumModel])
@pytest.mark.parametrize("steps", [1, 2])
def test_equals_an_undisturbed_run(memory, cls, steps, caplog):
    make = _maker(memory, steps_per_execution=steps)
    expected = run(make, models.fit, keras.Model)
    recovery = callbacks.OOMRecovery(grow_after=None)
    with caplog.at_level(logging.WARNING, "keras_tfopt"):
        outcome = run(make, _fit(memory, 2, recovery), cls)
    assert_same(outcome, expected)
    assert memory.failures == 2
    sizes = [event.new.microbatch_size for event in recovery.plan_events]
    assert sizes == [5, 2]
    assert all(event.seconds > 0 for event in recovery.plan_events)
    assert len(caplog.records) == 2
    assert "microbatch_size=5" in caplog.text


def test_uneven_sizes_down_to_the_smallest_allowed(memory):
    expected = run(_maker(memory), models.fit, keras.Model)
    recovery = callbacks.OOMRecovery(min_microbatch_size=3, grow_after=None)
    outcome = run(_maker(memory), _fit(memory, 3, recovery), AccumModel)
    assert_same(outcome, expected)
    sizes = [event.new.microbatch_size for event in recovery.plan_events]
    assert sizes == [5, 3]


def test_no_way_on(memory):
    model = _maker(memory)(AccumModel)
    models.fit(model)
    recovery = callbacks.OOMRecovery(min_microbatch_size=2)
    memory.rows = 1
    model.reset_metrics()
    message = "tried 10, 5, 2 rows.*Expected: room for 2.*min_microbatch_size"
    with unchanged(model), pytest.raises(OutOfMemoryError, match=message):
        model.fit(models.X, models.Y, batch_size=10, callbacks=[recovery],
                  verbose=0)  # fmt: skip
    memory.rows = None
    models.fit(model)


class Remembering:
    """Has room for the activations of a step that recomputes them only."""

    def __init__(self, rows):
        self.rows = rows
        self.recovery = callbacks.OOMRecovery(5, grow_after=None)
        self.failures = 0

    def __call__(self, array):
        events = self.recovery.plan_events
        recomputes = bool(events) and events[-1].new.remat is not None
        if len(array) > self.rows * (4 if recomputes else 1):
            self.failures += 1
            raise MemoryError("no room")


def _deep(memory):
    def make(cls, **settings):
        outputs = inputs = keras.Input((4,))
        for _ in range(6):
            outputs = keras.layers.Dense(8, activation="tanh")(outputs)
            outputs = keras.layers.Dropout(0.2, seed=1)(outputs)
        outputs = builders.Probe(memory)(outputs)
        return models.compiled(
            cls(inputs, keras.layers.Dense(1)(outputs), **settings)
        )

    return make


def test_rematerialization_is_the_last_resort():
    short = Remembering(rows=2)
    expected = run(_deep(None), models.fit, AccumModel, microbatch_size=5)

    def fit(model):
        return models.fit(model, callbacks=[short.recovery])

    assert_same(run(_deep(short), fit, keras.Model), expected)
    first, last = short.recovery.plan_events
    assert first.new == last.old == ExecutionPlan(microbatch_size=5)
    assert last.new.microbatch_size == 5
    assert last.new.remat
    assert "segments are computed again" in last.reason
    assert short.failures == 2


_REAL = """
import json

import keras
import numpy as np

from keras_tfopt import AccumModel
from keras_tfopt import callbacks

ROWS, WIDTH = 4096, 256
x = np.random.default_rng(0).normal(size=(ROWS, 8)).astype("float32")
y = np.ones((ROWS, 1), "float32")


def train(*used, **settings):
    keras.utils.set_random_seed(0)
    outputs = inputs = keras.Input((8,))
    for _ in range(24):
        outputs = keras.layers.Dense(WIDTH, activation="tanh")(outputs)
    model = AccumModel(inputs, keras.layers.Dense(1)(outputs), **settings)
    model.compile(keras.optimizers.SGD(0.01, momentum=0.9), "mse")
    model.fit(x, y, batch_size=ROWS, epochs=2, verbose=0, callbacks=[*used])
    return model.get_weights()


recovery = callbacks.OOMRecovery(min_microbatch_size=ROWS, grow_after=None)
pairs = zip(train(recovery), train(microbatch_size=512), strict=True)
(event,) = recovery.plan_events
print(json.dumps({
    "difference": max(float(np.abs(a - b).max()) for a, b in pairs),
    "segments": len(event.new.remat),
}))
"""


def test_a_real_shortage_is_overcome():
    printed = subprocesses.run_source(
        _REAL,
        TF_CPU_ALLOCATOR_USE_BFC="true",
        TF_CPU_BFC_MEM_LIMIT_IN_MB="96",
        TF_CPP_MIN_LOG_LEVEL="3",
        TF_ENABLE_ONEDNN_OPTS="0",
    )
    found = json.loads(printed.splitlines()[-1])
    assert found["segments"] > 1
    assert found["difference"] < 1e-6


def test_rematerialization_can_be_declined():
    short = Remembering(rows=2)
    short.recovery = callbacks.OOMRecovery(5, remat=False)
    model = _deep(short)(AccumModel)
    with pytest.raises(OutOfMemoryError, match="tried 10, 5 rows"):
        models.fit(model, callbacks=[short.recovery])


def test_training_ends_where_rematerialization_does_not_help():
    short = Remembering(rows=1)
    model = _deep(short)(AccumModel)
    with pytest.raises(OutOfMemoryError, match="10, 5, 5 with remat rows"):
        models.fit(model, callbacks=[short.recovery])


def test_grows_back_and_remembers_what_failed(memory):
    recovery = callbacks.OOMRecovery(grow_after=3)

    def fit(model):
        memory.rows = 4
        history = models.fit(model, epochs=8, callbacks=[recovery])
        return history

    expected = run(
        _maker(memory), lambda m: models.fit(m, epochs=8), keras.Model
    )
    outcome = run(_maker(memory), fit, AccumModel)
    assert_same(outcome, expected)
    events = recovery.plan_events
    tries = [e.step for e in events if "without a failure" in e.reason]
    # A size that failed again is tried after twice as long.
    assert list(np.diff([0, *tries])) == [3, 3, 6, 12]


def test_a_passing_shortage_does_not_last(memory):
    recovery = callbacks.OOMRecovery(grow_after=2)

    def fit(model):
        memory.rows = 5
        relief = models.AtBatch(2, lambda _: setattr(memory, "rows", None))
        return models.fit(model, epochs=4, callbacks=[recovery, relief])

    outcome = run(_maker(memory), fit, AccumModel)
    assert not outcome.model.plan.is_split
    assert recovery.plan_events[-1].new == outcome.model.plan


def test_evaluate_and_predict(memory):
    recovery = callbacks.OOMRecovery()
    for cls in (keras.Model, AccumModel):
        memory.rows = None
        model = _maker(memory)(cls)
        logs = model.evaluate(models.X, models.Y, verbose=0, return_dict=True)
        outputs = model.predict(models.X, verbose=0)
        memory.rows = 3
        again = model.evaluate(
            models.X, models.Y, verbose=0, return_dict=True,
            callbacks=[recovery],
        )  # fmt: skip
        assert again == pytest.approx(logs, abs=1e-6)
        np.testing.assert_allclose(
            model.predict(models.X, verbose=0, callbacks=[recovery]),
            outputs,
            atol=1e-6,
        )


def test_validation_inside_of_fit(memory):
    fit_arguments = {"validation_data": (models.X, models.Y)}
    expected = run(
        _maker(memory), lambda m: models.fit(m, **fit_arguments), keras.Model
    )
    recovery = callbacks.OOMRecovery(grow_after=None)
    outcome = run(
        _maker(memory), _fit(memory, 4, recovery, **fit_arguments), keras.Model
    )
    assert_same(outcome, expected)


def test_gathered_batches(memory):
    make = _maker(memory)
    expected = run(make, models.fit, AccumModel, gather_steps=2)
    recovery = callbacks.OOMRecovery(grow_after=None)
    outcome = run(make, _fit(memory, 5, recovery), AccumModel, gather_steps=2)
    assert_same(outcome, expected)
    assert recovery.plan_events


def test_a_plain_model_gets_its_own_step_back(memory):
    model = _maker(memory)(keras.Model)
    models.fit(model, callbacks=[callbacks.OOMRecovery()])
    assert "make_train_function" not in vars(model)
    stock = type(model).make_train_function
    memory.rows = 3
    with pytest.raises(tf.errors.ResourceExhaustedError):
        models.fit(model)
    assert model.make_train_function.__func__ is stock


def test_a_plain_model_gets_it_back_after_an_exception_too(memory):
    model = _maker(memory)(keras.Model)
    interruption = models.AtBatch(1, models.interrupt)
    with pytest.raises(models.Interruption):
        models.fit(model, callbacks=[callbacks.OOMRecovery(), interruption])
    memory.rows = 3
    with pytest.raises(tf.errors.ResourceExhaustedError):
        models.fit(model)


def test_other_errors_pass(memory):
    model = _maker(memory)(AccumModel)
    models.fit(model)
    with pytest.raises(tf.errors.InvalidArgumentError):
        models.fit(
            model,
            models.X[:, :4] * np.nan,
            models.Y,
            callbacks=[callbacks.OOMRecovery(), _Check()],
        )


class _Check(keras.callbacks.Callback):
    """Raises what a data error raises."""

    def on_train_batch_begin(self, batch, logs=None):
        raise tf.errors.InvalidArgumentError(None, None, "not about memory")


@pytest.mark.parametrize(
    "arguments",
    [
        {"min_microbatch_size": 0},
        {"min_microbatch_size": None},
        {"grow_after": 0},
        {"grow_after": 1.5},
        {"max_utilization": 0},
        {"max_utilization": 1.1},
    ],
    ids=str,
)
def test_bad_arguments(arguments):
    with pytest.raises(ValueError, match=f"{next(iter(arguments))}.*Expected"):
        callbacks.OOMRecovery(**arguments)


def test_own_train_step_is_refused():
    class Own(AccumModel):
        def train_step(self, data):
            return super().train_step(data)

    model = models.compiled(models.network(Own))
    with pytest.raises(ValueError, match="Own.train_step.*compute_loss"):
        models.fit(model, callbacks=[callbacks.OOMRecovery()])
