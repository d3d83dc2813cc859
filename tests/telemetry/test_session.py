import sys
import threading
import time

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_tfopt import AccumModel
from keras_tfopt import callbacks
from keras_tfopt.telemetry.figures import TrainingFigures
from keras_tfopt.telemetry.records import CallRecord
from keras_tfopt.telemetry.records import EpochEnd
from keras_tfopt.telemetry.records import PlanChange
from keras_tfopt.telemetry.session import session_of
from keras_tfopt.telemetry.store import MetricStore
from tests import builders
from tests import models
from tests.telemetry.capture import Capture

BATCHES = -(-models.ROWS // models.BATCH)


class OwnStep(keras.Model):
    """A model whose `train_step` is its own."""

    def train_step(self, data):
        return super().train_step(data)


class StepLosses(keras.callbacks.Callback):
    """Computes the loss of each batch before the weights change."""

    def __init__(self):
        super().__init__()
        self.losses = []

    def on_train_batch_begin(self, batch, logs=None):
        part = slice(batch * models.BATCH, (batch + 1) * models.BATCH)
        y_pred = self.model(models.X[part])
        loss = np.mean(np.square(models.Y[part] - y_pred.numpy()))
        self.losses.append(float(loss))


def threads():
    """Returns the samplers at work."""
    return [t for t in threading.enumerate() if "telemetry" in t.name]


@pytest.mark.parametrize(
    ("cls", "settings", "updates", "per_call"),
    [
        (keras.Model, {}, BATCHES, 1),
        (OwnStep, {}, BATCHES, 2),
        (AccumModel, {"microbatch_size": 4}, BATCHES, 2),
        (AccumModel, {"gather_steps": 2}, 2, 1),
    ],
)
def test_steps_and_rows_are_counted(cls, settings, updates, per_call):
    model = models.regressor(cls, {"steps_per_execution": per_call}, **settings)
    capture = Capture()
    history = models.fit(model, epochs=3, callbacks=[capture])

    assert capture.value("steps_total") == 3 * updates
    assert capture.value("samples_total") == 3 * models.ROWS
    assert capture.last.step == int(model.optimizer.iterations)
    duration = capture.last.distributions["step_duration_seconds"]
    assert duration.count == 3 * updates
    assert duration.total > 0
    assert capture.value("loss") == pytest.approx(history.history["loss"][-1])
    ends = capture.of_kind(EpochEnd)
    assert [end.updates for end in ends] == [updates, 2 * updates, 3 * updates]
    assert [end.logs["loss"] for end in ends] == history.history["loss"]
    assert capture.value("nonfinite_steps_total") == 0
    assert capture.value("last_step_timestamp_seconds") is None
    assert not threads()


def test_rows_of_a_dataset_come_from_the_metric_of_the_loss():
    model = models.regressor(keras.Model)
    data = tf.data.Dataset.from_tensor_slices((models.X, models.Y)).batch(10)
    capture = Capture()
    model.fit(data, epochs=2, verbose=0, shuffle=False, callbacks=[capture])
    assert capture.value("samples_total") == 2 * models.ROWS


@pytest.mark.parametrize("cls", [keras.Model, AccumModel])
def test_loss_is_that_of_the_step(cls):
    model = models.regressor(cls)
    capture, expected = Capture(), StepLosses()
    models.fit(model, callbacks=[capture, expected])

    store = MetricStore()
    figures = TrainingFigures(store)
    losses = []
    for record in capture.of_kind(CallRecord):
        figures.take([record])
        losses.append(store.snapshot(0.0, 0).of("step_loss")[()])
    assert losses == pytest.approx(expected.losses, rel=1e-5)


def test_plan_and_waiting_are_known_of_guarded_steps():
    model = models.regressor(AccumModel, microbatch_size=4)
    capture = Capture()
    data = tf.data.Dataset.from_tensor_slices((models.X, models.Y)).batch(13)

    def slow(x, y):
        return tf.numpy_function(
            lambda x: (time.sleep(0.05), x)[1], [x], tf.float32
        ), y

    data = data.map(slow).map(lambda x, y: (tf.ensure_shape(x, [None, 4]), y))
    model.fit(data, epochs=2, verbose=0, shuffle=False, callbacks=[capture])
    assert capture.value("microbatch_size") == 4
    assert capture.value("accumulation_steps") == 4
    assert capture.value("data_wait_seconds_total") > 0.15
    assert 0 < capture.value("data_wait_ratio") <= 1


def test_waiting_is_absent_where_keras_draws_in_its_graph(caplog):
    caplog.set_level("INFO", "keras_tfopt")
    capture = Capture()
    models.fit(models.regressor(keras.Model), callbacks=[capture])
    assert capture.value("data_wait_ratio") is None
    assert capture.value("microbatch_size") is None
    said = [m for m in caplog.messages if "data_wait_ratio" in m]
    assert len(said) == 1
    assert "inside of its compiled step" in said[0]


@pytest.mark.parametrize(
    ("cls", "is_first"), [(keras.Model, True), (AccumModel, False)]
)
def test_recoveries_are_counted_with_their_plans(cls, is_first):
    fault = builders.Fault()
    model = builders.stack(cls, [builders.Probe(forward=fault)])
    capture = Capture()
    recovery = callbacks.OOMRecovery()
    fault.arm(1)
    # Fails whole and in halves, and goes on in quarters.
    model_calls = []

    class Disarm(keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            control = self.model.train_function.control
            control.listeners.append(self.note)

        def note(self, event):
            model_calls.append(event)
            if len(self.model.train_function.control.plan_events) == 2:
                fault.disarm()

    watching = [capture, recovery] if is_first else [recovery, capture]
    x, y = builders.regression_data(16)
    model.fit(x, y, batch_size=8, verbose=0, callbacks=[*watching, Disarm()])

    assert len(recovery.plan_events) == 2
    assert capture.value("oom_recoveries_total") == 2
    changes = capture.of_kind(PlanChange)
    assert tuple(c.event for c in changes) == recovery.plan_events
    reason = {"reason": "out_of_memory"}
    assert capture.value("plan_changes_total", **reason) == 2
    assert capture.value("plan_changes_failed_total", **reason) == 1
    assert capture.value("plan_changes_failed_total", reason="other") == 0
    assert capture.value("microbatch_size") == 2
    assert capture.value("samples_total") == 16


def test_refused_steps_are_not_finite(tmp_path):
    model = models.regressor(AccumModel)
    y = models.Y.copy()
    y[12] = np.nan
    guard = callbacks.NonFiniteRollback(report_path=tmp_path / "bad.json")
    capture = Capture()
    models.fit(model, y=y, callbacks=[capture, guard])
    assert capture.value("nonfinite_steps_total") == 2
    assert capture.value("steps_total") == 2 * (BATCHES - 1)


def test_loss_that_is_not_finite_has_no_series():
    model = models.regressor(keras.Model)
    y = models.Y.copy()
    y[-1] = np.inf
    capture = Capture()
    models.fit(model, y=y, epochs=1, callbacks=[capture])
    assert capture.value("nonfinite_steps_total") == 1
    assert capture.value("loss") is None
    assert capture.value("step_loss") is None


def test_publishers_share_one_sampler_and_errors_stay_with_them(caplog):
    class Failing(Capture):
        def publish(self, history):
            raise OSError("the disk is full")

    model = models.regressor(AccumModel)
    first, second, third = Failing(), Capture(), Capture()
    counts = []
    spy = models.AtBatch(1, lambda model: counts.append(len(threads())))
    models.fit(model, callbacks=[first, second, spy, third])

    assert counts == [1, 1]
    assert not threads()
    assert second.value("steps_total") == third.value("steps_total")
    assert second.value("steps_total") == 2 * BATCHES
    assert second.calls[0] == "open"
    assert second.calls[-1] == first.calls[-1] == "close"
    said = [m for m in caplog.messages if "the disk is full" in m]
    assert said == [
        "Failing fails, and training goes on: OSError: the disk is full"
    ]


def test_counters_go_on_in_the_next_fit():
    model = models.regressor(AccumModel)
    first, second = Capture(), Capture()
    models.fit(model, callbacks=[first])
    models.fit(model, callbacks=[second])
    assert second.value("steps_total") == 4 * BATCHES
    assert second.last.step == 4 * BATCHES
    assert len(model._settings.listeners) == 0


@pytest.mark.parametrize("cls", [keras.Model, AccumModel])
def test_exception_ends_the_sampler_and_the_next_fit_works(cls):
    model = models.regressor(cls)
    capture = Capture()
    interrupted = models.AtBatch(1, models.interrupt)
    with pytest.raises(models.Interruption):
        models.fit(model, callbacks=[capture, interrupted])
    # Not noticed yet: the next `fit` ends it.
    models.fit(model, callbacks=[capture])
    assert capture.calls.count("close") == 2
    with pytest.raises(models.Interruption):
        models.fit(model, callbacks=[capture, interrupted])
    for thread in threads():
        thread.join(timeout=20)
    assert not threads()
    assert capture.calls[-1] == "close"


def test_own_loop_may_call_the_callbacks():
    model = models.regressor(keras.Model)
    captures = [Capture(), Capture()]
    listed = keras.callbacks.CallbackList(captures, model=model)
    listed.on_train_begin()
    assert len(threads()) == 1
    listed.on_epoch_begin(0)
    for number, batch in enumerate(models.batches()):
        listed.on_train_batch_begin(number)
        logs = model.train_on_batch(*batch, return_dict=True)
        listed.on_train_batch_end(number, logs)
    listed.on_train_end()
    assert not threads()
    assert captures[1].value("steps_total") == BATCHES


def test_other_callbacks_are_asked_for_readings(tmp_path):
    model = models.regressor(AccumModel)
    capture = Capture()
    backup = callbacks.BackupAndRestore(tmp_path, delete_checkpoint=False)
    xla = callbacks.XLACompilation()
    models.fit(model, callbacks=[capture, backup, xla], batch_size=13)
    assert capture.value("xla_compilations_total", result="success") == 1
    assert capture.value("xla_compilations_total", result="fallback") == 0
    assert capture.value("compiled_shapes") == 1
    assert capture.value("xla_compile_seconds_total") > 0
    assert 0 < capture.value("xla_compile_time_ratio") < 1
    assert capture.value("plan_changes_total", reason="xla") == 1
    assert capture.value("plan_changes_total", reason="other") == 0
    assert capture.value("backup_seconds") > 0
    assert capture.value("backup_stall_seconds") > 0
    assert capture.value("backup_age_seconds") > 0


def test_results_are_those_of_an_unwatched_run():
    watched = models.regressor(AccumModel)
    models.fit(watched, callbacks=[Capture()])
    keras.utils.set_random_seed(0)
    plain = models.regressor(AccumModel)
    models.fit(plain)
    for a, b in zip(watched.weights, plain.weights, strict=True):
        np.testing.assert_array_equal(a, b)


def test_overhead_is_counted():
    capture = Capture()
    models.fit(models.regressor(AccumModel), callbacks=[capture])
    assert 0 < capture.value("telemetry_overhead_seconds_total") < 5


def test_session_is_no_part_of_what_is_saved(tmp_path):
    model = models.regressor(keras.Model)
    models.fit(model, callbacks=[Capture()])
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert "_keras_tfopt_telemetry" not in vars(loaded)
    assert sys.getrefcount(session_of(model)) < 6
