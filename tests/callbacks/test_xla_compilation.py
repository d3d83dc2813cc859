"""Training goes on where XLA refuses a step, as if it had never been asked."""

import dataclasses
import functools
import logging

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_tfopt import AccumModel
from keras_tfopt import callbacks
from tests import builders
from tests import models
from tests.equivalence import assert_same
from tests.equivalence import run
from tests.equivalence import state_of


class Apply(keras.layers.Layer):
    """Adds the value of a function of TensorFlow to its inputs."""

    def __init__(self, function, **kwargs):
        super().__init__(**kwargs)
        self.function = function

    def call(self, inputs):
        return inputs + self.function(inputs)

    def compute_output_shape(self, input_shape):
        return input_shape


def _unique(x):
    values, _ = tf.unique(tf.reshape(tf.cast(x * 2, tf.int32), [-1]))
    return tf.cast(tf.size(values), tf.float32) / 10


def _boolean_mask(x):
    return tf.reduce_mean(tf.boolean_mask(x, x > 0))


def _strings(x):
    return tf.cast(tf.strings.length(tf.strings.as_string(x)), tf.float32) / 10


def _numpy(x):
    y = tf.numpy_function(np.tanh, [x], tf.float32, stateful=False)
    return tf.stop_gradient(tf.ensure_shape(y, x.shape))


def _value_as_shape(x):
    count = tf.reduce_sum(tf.cast(x > 0, tf.int32))
    return tf.reduce_mean(tf.cast(tf.range(count + 1), tf.float32))


REFUSED = {
    "AsString": _strings,
    "PyFuncStateless": _numpy,
    "Range": _value_as_shape,
}


def _maker(function, **compile_with):
    def make(cls, **settings):
        inputs = keras.Input((4,))
        hidden = keras.layers.Dense(5, activation="tanh")(inputs)
        hidden = Apply(function, name="applied")(hidden)
        model = cls(inputs, keras.layers.Dense(1)(hidden), **settings)
        return models.compiled(model, **compile_with)

    return make


def _with(fit, *used):
    return lambda model: fit(model, callbacks=list(used))


def _check(make, xla, fit=models.fit, cls=AccumModel, **settings):
    """Compares a run with XLA to stock Keras without, and returns it."""
    expected = run(make, fit, keras.Model)
    outcome = run(make, _with(fit, xla), cls, **settings)
    assert_same(outcome, expected)
    return outcome


def test_compiles_a_plain_model():
    xla = callbacks.XLACompilation()
    outcome = _check(models.regressor, xla, cls=keras.Model)
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
    outcome = _check(
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


@pytest.mark.parametrize(
    "operation, cls, settings",
    [
        ("AsString", keras.Model, {}),
        ("AsString", AccumModel, {"microbatch_size": 4}),
        ("PyFuncStateless", keras.Model, {}),
        ("PyFuncStateless", AccumModel, {"microbatch_size": 4}),
        # It is not a function of one row, so not the same in parts.
        ("Range", AccumModel, {}),
    ],
)
def test_refused_operations(operation, cls, settings, caplog):
    make = _maker(REFUSED[operation])
    reference = run(make, models.fit, keras.Model)
    xla = callbacks.XLACompilation()
    with caplog.at_level(logging.WARNING, "keras_tfopt"):
        outcome = run(make, _with(models.fit, xla), cls, **settings)
    assert_same(outcome, reference)
    stats = xla.stats()
    assert (stats.failures, stats.successes, stats.success_ratio) == (1, 0, 0)
    assert [e.new.jit_compile for e in xla.plan_events] == [True, False]
    failed = [r for r in caplog.records if "failed under XLA" in r.message]
    assert len(failed) == 1
    assert f"operation {operation} of layer 'applied'" in failed[0].message


@pytest.mark.parametrize("function", [_unique, _boolean_mask])
def test_dynamic_shapes(function):
    # Whether XLA takes them or not is its own affair.
    _check(_maker(function), callbacks.XLACompilation(), cls=keras.Model)


def test_several_steps_in_a_call():
    xla = callbacks.XLACompilation()
    _check(_maker(_numpy, steps_per_execution=2), xla, cls=keras.Model)
    assert xla.stats().failures == 1


def _lengths(*lengths, rows=4):
    random = np.random.default_rng(0)
    return [
        (
            random.normal(size=(rows, length, 4)).astype("float32"),
            random.normal(size=(rows, 1)).astype("float32"),
        )
        for length in lengths
    ]


def _sequences(function=None):
    def make(cls, **settings):
        inputs = keras.Input((None, 4))
        hidden = keras.layers.Dense(5, activation="tanh")(inputs)
        if function is not None:
            hidden = Apply(function, name="applied")(hidden)
        hidden = keras.layers.GlobalAveragePooling1D()(hidden)
        model = cls(inputs, keras.layers.Dense(1)(hidden), **settings)
        return models.compiled(model)

    return make


def _fit_stream(parts):
    return lambda model, **kwargs: models.fit(
        model, models.streamed(parts), None, epochs=1, **kwargs
    )


def _refused_when_long(x):
    """Takes 60 values, of what XLA only knows how many there may be."""
    flat = tf.reshape(x, [-1])
    count = 60 + tf.cast(0 * flat[0], tf.int32)
    taken = tf.boolean_mask(flat, tf.range(tf.size(flat)) < count)
    return tf.reduce_mean(tf.reshape(taken, [60]))


@pytest.mark.parametrize("cls", [keras.Model, AccumModel])
def test_refused_at_a_later_batch(cls):
    xla = callbacks.XLACompilation()
    parts = _lengths(3, 3, 3, 7, 3)
    _check(_sequences(_refused_when_long), xla, _fit_stream(parts), cls)
    stats = xla.stats()
    assert (stats.successes, stats.failures) == (1, 1)
    assert stats.compiled_steps == 3
    on, off = xla.plan_events
    assert (on.step, off.step) == (0, 3)
    assert off.seconds > 0


def _user_error(x):
    """What fails for long sequences, under XLA for another reason."""
    with tf.control_dependencies([tf.debugging.assert_less(tf.shape(x)[1], 7)]):
        return _refused_when_long(tf.identity(x))


def test_a_users_error_surfaces_as_it_is():
    xla = callbacks.XLACompilation()
    model = _sequences(_user_error)(AccumModel)
    fit = _fit_stream(_lengths(3, 7))
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        fit(model, callbacks=[xla])
    assert "assertion failed" in str(caught.value)
    assert "XLA" not in str(caught.value)
    assert int(model.optimizer.iterations) == 1
    # It was no fault of XLA, which is used again.
    _fit_stream(_lengths(3, 3))(model, callbacks=[xla])
    assert xla.stats().compiled_steps == 3


class Words(AccumModel):
    """Reads lists of words, whose lengths differ."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.lookup = tf.lookup.StaticHashTable(
            tf.lookup.KeyValueTensorInitializer(["a", "b"], [1.0, 2.0]), 0.5
        )
        self.dense = keras.layers.Dense(1)

    def call(self, inputs):
        values = tf.ragged.map_flat_values(self.lookup.lookup, inputs)
        mean = tf.reduce_mean(values, axis=1, keepdims=True)
        return self.dense(tf.ensure_shape(mean, (None, 1)))


def test_ragged_strings():
    words = tf.ragged.constant([["a"], ["b", "c"], ["b"], ["c", "a"]] * 2)
    targets = tf.reshape(tf.range(8.0), (8, 1))
    data = tf.data.Dataset.from_tensor_slices((words, targets)).batch(4)

    def fit(model, **kwargs):
        return models.fit(model, data, None, **kwargs)

    class StockWords(Words, keras.Model):
        make_train_function = keras.Model.make_train_function

    xla = callbacks.XLACompilation()
    expected = run(lambda: models.compiled(StockWords()), fit)
    outcome = run(lambda: models.compiled(Words()), _with(fit, xla))
    assert_same(outcome, expected)
    assert xla.stats().failures == 1


def test_ragged_numbers():
    values = tf.ragged.constant([[1.0], [2.0, 3.0], [4.0], [5.0, 6.0]] * 2)
    targets = tf.reshape(tf.range(8.0), (8, 1))
    data = tf.data.Dataset.from_tensor_slices((values, targets)).batch(4)

    def make():
        inputs = keras.Input((None,), ragged=True)
        outputs = keras.layers.Dense(1)(Mean()(inputs))
        return models.compiled(keras.Model(inputs, outputs))

    class Mean(keras.layers.Layer):
        def call(self, inputs):
            return tf.reduce_mean(inputs, axis=1, keepdims=True)

        def compute_output_shape(self, input_shape):
            return (None, 1)

    def fit(model, **kwargs):
        return models.fit(model, data, None, **kwargs)

    xla = callbacks.XLACompilation()
    assert_same(run(make, _with(fit, xla)), run(make, fit))


class Memory:
    """Room for some rows; more of them raise what an allocator raises."""

    def __call__(self, array):
        if len(array) > 4:
            raise MemoryError("no room")


@pytest.mark.parametrize("is_first", [True, False])
def test_recovers_from_out_of_memory_after_a_refusal(is_first):
    def make(cls, room=lambda array: None):
        inputs = keras.Input((4,))
        hidden = builders.Probe(room)(keras.layers.Dense(5)(inputs))
        return models.compiled(cls(inputs, keras.layers.Dense(1)(hidden)))

    xla = callbacks.XLACompilation()
    recovery = callbacks.OOMRecovery(grow_after=None)
    used = [xla, recovery] if is_first else [recovery, xla]
    expected = run(make, models.fit, keras.Model)
    outcome = run(make, _with(models.fit, *used), keras.Model, room=Memory())
    assert_same(outcome, expected)
    plans = [event.new for event in recovery.plan_events]
    assert [plan.jit_compile for plan in plans] == [True, False, False, False]
    assert [plan.microbatch_size for plan in plans] == [None, None, 5, 2]


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
        models.regressor, _with(models.fit, xla, *switches), AccumModel
    )
    assert_same(outcome, models.stock_outcome())
    events = xla.plan_events
    assert [event.step for event in events] == [1, 2, 4, 5]
    assert [e.new.jit_compile for e in events] == [True, False, True, False]
    assert xla.stats().compiled_steps == 2


def test_switching_on_again_after_a_failure():
    xla = callbacks.XLACompilation()
    again = models.AtBatch(1, lambda model: xla.switch("on"))
    _check(_maker(_strings), xla, cls=keras.Model)
    model = _maker(_strings)(keras.Model)
    models.fit(model, epochs=1, callbacks=[xla, again])
    assert xla.stats().failures == 2


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
    parts = _lengths(3, 4, 5, 6, 3, 4, 3)
    with caplog.at_level(logging.WARNING, "keras_tfopt"):
        outcome = _check(_sequences(), xla, _fit_stream(parts), keras.Model)
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

    outcome = _check(models.regressor, xla, fit)
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
    outcome = run(make, _with(models.fit, xla), AccumModel)
    # XLA rounds elsewhere, and float16 has three digits.
    assert_same(outcome, expected, tolerance=2e-3)
    assert xla.stats().compiled_steps == 4


def test_what_is_dropped_is_said_and_seen_in_checked_steps(caplog):
    def check(x):
        return tf.debugging.check_numerics(tf.reduce_mean(x), "not a number")

    x = np.array(models.X)
    x[-1] = np.nan
    fit = functools.partial(
        models.fit, x=x, y=models.Y, batch_size=13, epochs=4
    )
    unchecked = _maker(check)(AccumModel)
    xla = callbacks.XLACompilation(compile_short_batches=True)
    with caplog.at_level(logging.WARNING, "keras_tfopt"):
        fit(unchecked, callbacks=[xla])
    assert int(unchecked.optimizer.iterations) == 8
    assert caplog.text.count("CheckNumerics of layer 'applied'") == 1
    checked = _maker(check)(AccumModel)
    xla = callbacks.XLACompilation(check_every=4)
    with pytest.raises(tf.errors.InvalidArgumentError, match="not a number"):
        fit(checked, callbacks=[xla])
    assert int(checked.optimizer.iterations) == 3
    assert xla.stats().compiled_steps == 3


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


class Undeclared(keras.layers.Layer):
    """Declares that XLA cannot compile it."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.supports_jit = False

    def call(self, inputs):
        return inputs


def _undeclared(cls):
    inputs = keras.Input((4,))
    layer = Undeclared(name="dynamic")
    model = cls(inputs, keras.layers.Dense(1)(layer(inputs)))
    return models.compiled(model)


@pytest.mark.parametrize(
    "make, settings, reason",
    [
        (_undeclared, {}, "layer 'dynamic' declares"),
        (models.regressor, {"gather_steps": 2}, "gather_steps"),
        (
            lambda cls: models.regressor(cls, {"run_eagerly": True}),
            {},
            "eagerly",
        ),
    ],
    ids=["layer", "gathered", "eager"],
)
def test_models_that_xla_is_not_asked_for(make, settings, reason, caplog):
    xla = callbacks.XLACompilation()
    make = functools.partial(make, AccumModel, **settings)
    expected = run(make, models.fit)
    with caplog.at_level(logging.WARNING, "keras_tfopt"):
        outcome = run(make, _with(models.fit, xla))
    assert_same(outcome, expected)
    assert xla.stats().attempts == 0
    assert reason in caplog.text


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
        {"on_new_shape": "pad"},
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


def test_own_train_step_is_refused():
    class Own(AccumModel):
        def train_step(self, data):
            return super().train_step(data)

    model = models.compiled(models.network(Own))
    with pytest.raises(ValueError, match="Own.train_step.*compute_loss"):
        models.fit(model, callbacks=[callbacks.XLACompilation()])
