"""Training under XLA equals training without, and can be switched."""

import dataclasses
import logging

import keras
import numpy as np
import pytest

from keras_tfopt import AccumModel
from keras_tfopt import callbacks
from tests import models
from tests.callbacks.xla_models import check
from tests.callbacks.xla_models import fit_stream
from tests.callbacks.xla_models import lengths
from tests.callbacks.xla_models import sequences
from tests.callbacks.xla_models import with_used
from tests.equivalence import assert_same
from tests.equivalence import run
from tests.equivalence import state_of


def test_compiles_a_plain_model():
    xla = callbacks.XLACompilation()
    outcome = check(models.regressor, xla, cls=keras.Model)
    stats = xla.stats()
    # The last batch of each epoch is short, and not worth a compilation.
    assert (stats.attempts, stats.successes, stats.failures) == (1, 1, 0)
    assert stats.compiled_steps == 4
    assert stats.compiled_shapes == (
        (("float32", (10, 4)), ("float32", (10, 1))),
    )
    assert len(stats.uncompiled_shapes) == 1
    assert stats.success_ratio == 1
    assert 0 < stats.compile_seconds < stats.training_seconds
    assert 0 < stats.compile_share < 1
    assert [event.new.jit_compile for event in xla.plan_events] == [True]
    assert "make_train_function" not in vars(outcome.model)


@pytest.mark.parametrize("steps", [1, 2])
def test_compiles_micro_batches(steps):
    xla = callbacks.XLACompilation(compile_short_batches=True)
    outcome = check(
        lambda cls, **s: models.regressor(
            cls, {"steps_per_execution": steps}, **s
        ),
        xla,
        microbatch_size=4,
    )
    assert xla.stats().compiled_steps == 6
    assert xla.stats().successes == 2
    # What needs the care of the callback ends with it.
    assert not outcome.model.plan.jit_compile


def test_micro_batches_that_grow_back_stay_compiled():
    xla = callbacks.XLACompilation()
    recovery = callbacks.OOMRecovery(grow_after=2)

    def shrink(model):
        plan = recovery.plan_events[-1].new
        model.change_plan(dataclasses.replace(plan, microbatch_size=5), "test")

    model = models.regressor(AccumModel)
    used = [xla, recovery, models.AtBatch(0, shrink)]
    # A size that somebody makes smaller is tried again after quiet steps.
    models.fit(model, epochs=2, callbacks=used)
    plans = [event.new for event in model.plan_events]
    assert all(plan.jit_compile for plan in plans)
    # It shrinks at the start of the second epoch, too.
    assert [plan.microbatch_size for plan in plans] == [None, 5, None, 5]


def test_switching_inside_of_an_epoch():
    xla = callbacks.XLACompilation(mode="off", compile_short_batches=True)
    switches = [
        models.AtBatch(0, lambda model: xla.switch("on")),
        models.AtBatch(1, lambda model: xla.switch("off")),
    ]
    outcome = run(
        models.regressor, with_used(models.fit, xla, *switches), AccumModel
    )
    assert_same(outcome, models.stock_outcome())
    events = xla.plan_events
    assert [event.step for event in events] == [1, 2, 4, 5]
    assert [e.new.jit_compile for e in events] == [True, False, True, False]
    assert xla.stats().compiled_steps == 2


def test_switching_between_fits():
    xla = callbacks.XLACompilation()
    model = models.regressor(AccumModel)
    models.fit(model, epochs=1, callbacks=[xla])
    xla.switch("off")
    assert not model.plan.jit_compile
    models.fit(model, epochs=1, callbacks=[xla])
    assert xla.stats().compiled_steps == 2
    xla.switch("on")
    models.fit(model, epochs=1, callbacks=[xla])
    assert xla.stats().compiled_steps == 4
    assert not model.plan.jit_compile


@pytest.mark.parametrize(
    "arguments, compiled, steps",
    [
        ({}, [3, 4, 5, 6], 7),
        ({"max_shapes": 2}, [3, 4], 5),
        ({"max_compile_seconds": 1e-3}, [3], 3),
        ({"on_new_shape": "fallback"}, [3], 3),
    ],
    ids=str,
)
def test_limits_of_shapes(arguments, compiled, steps, caplog):
    xla = callbacks.XLACompilation(**arguments)
    parts = lengths(3, 4, 5, 6, 3, 4, 3)
    with caplog.at_level(logging.WARNING, "keras_tfopt"):
        outcome = check(sequences(), xla, fit_stream(parts), keras.Model)
    assert outcome.model.optimizer.iterations == 7
    stats = xla.stats()
    # What is compiled stays in use.
    assert stats.compiled_steps == steps
    assert [shapes[0][1][1] for shapes in stats.compiled_shapes] == compiled
    assert len(stats.uncompiled_shapes) == 4 - len(compiled)
    assert ("float32[4, 5, 4]" in caplog.text) == (len(compiled) >= 3)
    assert ("shape number 4" in caplog.text) == (len(compiled) >= 4)
    is_limited = "on_new_shape" not in arguments and len(compiled) < 4
    assert ("which is the limit" in caplog.text) == is_limited


def test_validation_and_evaluation():
    xla = callbacks.XLACompilation()

    def fit(model, **kwargs):
        data = (models.X[:20], models.Y[:20])
        return models.fit(
            model, validation_data=data, validation_batch_size=10, **kwargs
        )

    outcome = check(models.regressor, xla, fit)
    stats = xla.stats("test")
    assert (stats.successes, stats.compiled_steps) == (1, 4)
    # Registering again for each validation is no decision.
    assert len(xla.plan_events) == 2
    logs = outcome.model.evaluate(models.X, models.Y, verbose=0)
    again = outcome.model.evaluate(
        models.X, models.Y, verbose=0, callbacks=[xla]
    )
    np.testing.assert_allclose(again, logs, rtol=1e-6)


def test_mixed_precision():
    def make(cls, **compile_with):
        policy = keras.mixed_precision.DTypePolicy("mixed_float16")
        inputs = keras.Input((4,))
        hidden = keras.layers.Dense(5, dtype=policy)(inputs)
        outputs = keras.layers.Dense(1, dtype=policy)(hidden)
        optimizer = keras.optimizers.LossScaleOptimizer(models.momentum())
        return models.compiled(cls(inputs, outputs), optimizer=optimizer)

    xla = callbacks.XLACompilation()
    expected = run(make, models.fit, keras.Model)
    outcome = run(make, with_used(models.fit, xla), AccumModel)
    # XLA rounds elsewhere, and float16 has three digits.
    assert_same(outcome, expected, tolerance=2e-3)
    assert xla.stats().compiled_steps == 4


def test_report_and_dumps(tmp_path, caplog):
    xla = callbacks.XLACompilation(dump_dir=tmp_path / "made" / "here")
    model = models.regressor(AccumModel)
    data = (models.X, models.Y)
    models.fit(model, validation_data=data, callbacks=[xla])
    names = {path.name for path in (tmp_path / "made" / "here").iterdir()}
    for role in ("train", "test"):
        assert {f"{role}.after.hlo", f"{role}.after.dot"} <= names
    assert xla.stats().fusion is None
    before = state_of(model)
    report = xla.report()
    assert xla.stats().fusion.fusions > 0
    lines = dict(line.split("  ", 1) for line in report.splitlines()[:-2])
    assert lines["XLA"].split() == ["train", "test"]
    assert lines["that went well"].split() == ["1", "1"]
    assert "train, compiled: float32[10, 4], float32[10, 1]" in report
    for path, value in state_of(model).items():
        np.testing.assert_array_equal(value, before[path])
    assert callbacks.XLACompilation().report().startswith("XLA")


def test_dumps_are_bounded(tmp_path, caplog):
    xla = callbacks.XLACompilation(dump_dir=tmp_path, max_dump_bytes=30_000)
    model = models.regressor(AccumModel)
    with caplog.at_level(logging.WARNING, "keras_tfopt"):
        models.fit(model, epochs=1, callbacks=[xla])
    sizes = [path.stat().st_size for path in tmp_path.iterdir()]
    assert 0 < sum(sizes) <= 30_000
    assert "left out" in caplog.text


def test_an_interrupted_fit_leaves_no_xla_behind():
    xla = callbacks.XLACompilation()
    model = models.regressor(AccumModel)
    with pytest.raises(models.Interruption):
        models.fit(model, callbacks=[xla, models.AtBatch(1, models.interrupt)])
    models.fit(model, epochs=1)
    assert not model.plan.jit_compile
    assert xla.stats().compiled_steps == 2


@pytest.mark.parametrize(
    "arguments",
    [
        {"mode": "fast"},
        {"mode": None},
        {"max_shapes": 0},
        {"max_shapes": None},
        {"max_shapes": 1.5},
        {"max_compile_seconds": 0},
        {"max_compile_seconds": float("nan")},
        {"max_compile_seconds": "10"},
        {"on_new_shape": "drop"},
        {"row_buckets": (8, 16)},
        {"row_buckets": (), "on_new_shape": "pad"},
        {"row_buckets": (8, 0), "on_new_shape": "pad"},
        {"row_buckets": 8, "on_new_shape": "pad"},
        {"check_every": 0},
        {"check_every": 1},
        {"trial_steps": 0},
        {"max_dump_bytes": 0},
        {"dump_dir": "/proc/version/below"},
        {"dump_dir": "/proc"},
        {"dump_dir": 3.5},
    ],
    ids=str,
)
def test_bad_arguments(arguments):
    name = next(iter(arguments))
    message = f"Invalid value for argument `{name}`.*Received: {name}=.*Expect"
    with pytest.raises(ValueError, match=message):
        callbacks.XLACompilation(**arguments)
    with pytest.raises(ValueError, match="argument `mode`"):
        callbacks.XLACompilation().switch("fast")
