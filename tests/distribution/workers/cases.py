"""What several workers train, and one device: each case runs on both."""

import keras
import numpy as np
import tensorflow as tf

from keras_tfopt import callbacks
from keras_tfopt import distribution
from tests import models
from tests.builders import Probe

_RNG = np.random.default_rng(1)
_IS_TOKEN = np.arange(6) < 6 - np.arange(26)[:, None] % 6
TOKENS = _RNG.integers(1, 5, (26, 6)) * _IS_TOKEN
LABELS = _RNG.integers(0, 3, (26, 6))
TOKEN_WEIGHTS = _RNG.uniform(0.2, 3, (26, 6)).astype("float32")


def fit(place):
    """Uneven batches, validation, evaluation, prediction."""
    extra = {}

    def train(model):
        x, y, weights = models.X[:21], models.Y[:21], models.WEIGHTS[:21]
        history = models.fit(
            model,
            x,
            y,
            epochs=1,
            sample_weight=weights,
            validation_data=(x[:11], y[:11], weights[:11]),
        )
        extra["evaluated"] = model.evaluate(x, y, batch_size=10, verbose=0)
        extra["predicted"] = model.predict(x, batch_size=10, verbose=0)
        return history

    def make(cls, **settings):
        compile_with = {"metrics": ["mape"], "steps_per_execution": 2}
        return models.regressor(cls, compile_with, **settings)

    outcome = place.run(make, train, microbatch_size=2)
    return {**outcome, **{k: np.asarray(v) for k, v in extra.items()}}


def clipping_and_scale(place):
    """A sum, clipped, and infinity in the second batch of the last worker."""
    x = models.X.copy()
    x[16] = np.inf

    def make(cls, **settings):
        optimizer = keras.optimizers.LossScaleOptimizer(
            keras.optimizers.AdamW(
                0.01, weight_decay=0.1, global_clipnorm=0.01, use_ema=True
            ),
            dynamic_growth_steps=2,
        )
        loss = keras.losses.MeanSquaredError(reduction="sum")
        compile_with = {"optimizer": optimizer, "loss": loss}
        return models.regressor(cls, compile_with, **settings)

    def train(model):
        return place.train(model, x)

    return place.run(make, train, accumulation_steps=2)


def masked_tokens(place):
    def make(cls, **settings):
        inputs = keras.Input((6,), dtype="int32")
        hidden = keras.layers.Embedding(5, 3, mask_zero=True)(inputs)
        return models.compiled(
            cls(inputs, keras.layers.Dense(3)(hidden), **settings),
            optimizer=keras.optimizers.Adam(0.01, clipnorm=0.1),
            loss=keras.losses.SparseCategoricalCrossentropy(
                True, ignore_class=1, reduction="mean_with_sample_weight"
            ),
            weighted_metrics=["accuracy"],
        )

    def train(model):
        return place.train(model, TOKENS, LABELS, TOKEN_WEIGHTS)

    return place.run(make, train, microbatch_size=2)


def statistics(place):
    """BatchNormalization, whose inputs do not depend on how it normalizes."""

    def make(cls, **settings):
        inputs = keras.Input((4,))
        hidden = keras.layers.BatchNormalization(momentum=0.5)(inputs)
        model = cls(inputs, keras.layers.Dense(1)(hidden), **settings)
        return models.compiled(model, weighted_metrics=None)

    def train(model):
        place.train(model, models.X + 100 * models.Y)

    outcome = place.run(make, train, microbatch_size=2)
    return {key: value for key, value in outcome.items() if "moving" in key}


def dropout(place):
    def make(cls, **settings):
        inputs = keras.Input((4,))
        hidden = keras.layers.Dense(5, activation="tanh")(inputs)
        hidden = distribution.PerExampleDropout(0.4, seed=3)(hidden)
        model = cls(inputs, keras.layers.Dense(1)(hidden), **settings)
        return models.compiled(model)

    outcome = place.run(make, place.train, microbatch_size=2)
    # Stock Keras counts calls, which we do not.
    return {k: v for k, v in outcome.items() if "seed_generator" not in k}


def compiled(place):
    def make(cls, **settings):
        return models.regressor(cls, {"jit_compile": True}, **settings)

    return place.run(make, place.train, microbatch_size=3)


def eager(place):
    def make(cls, **settings):
        return models.regressor(cls, {"run_eagerly": True}, **settings)

    return place.run(make, place.train, microbatch_size=3)


class LastWorker(Probe):
    """A `Probe` on the last worker only."""

    def __init__(self, place, forward):
        super().__init__(forward)
        self.is_here = place.count > 1 and place.index == place.count - 1

    def call(self, inputs):
        return super().call(inputs) if self.is_here else inputs


def _with_probe(place, forward):
    def make(cls, **settings):
        inputs = keras.Input((4,))
        hidden = keras.layers.Dense(5, activation="tanh")(inputs)
        hidden = LastWorker(place, forward)(hidden)
        model = cls(inputs, keras.layers.Dense(1)(hidden), **settings)
        return models.compiled(model, optimizer=keras.optimizers.Adam(0.01))

    return make


def shortage(place):
    """Memory for one row only, on the last worker."""

    def short(array):
        if len(array) > 1:
            raise MemoryError("injected")

    recovery = callbacks.OOMRecovery(grow_after=2)

    def train(model):
        x, y = models.X[:23], models.Y[:23]
        return models.fit(model, x, y, epochs=1, callbacks=[recovery])

    outcome = place.run(_with_probe(place, short), train)
    sizes = [event.new.microbatch_size or 0 for event in recovery.plan_events]
    steps = [event.step for event in recovery.plan_events]
    events = {} if place.count == 1 else {"events": np.array([sizes, steps])}
    return {**outcome, **events}


class Table(keras.layers.Layer):
    """Makes a table for its rows, and lets go of it."""

    # 4 MiB for each row.
    width = 2**20

    def call(self, inputs):
        table = tf.tile(tf.stop_gradient(inputs[:, :1]), [1, self.width])
        return inputs + tf.reduce_max(table, axis=1, keepdims=True)

    def compute_output_shape(self, input_shape):
        return input_shape


def exhausted(place):
    """The allocator of the last worker has room for fewer rows, really."""
    recovery = callbacks.OOMRecovery(grow_after=None)
    x = np.tile(models.X, (3, 1))[:64]
    y = x[:, :1]

    def make(cls, **settings):
        inputs = keras.Input((4,))
        hidden = Table()(inputs)
        model = cls(inputs, keras.layers.Dense(1)(hidden), **settings)
        return models.compiled(model, weighted_metrics=None)

    def train(model):
        return models.fit(
            model, x, y, batch_size=64, epochs=1, callbacks=[recovery]
        )

    outcome = place.run(make, train)
    sizes = [event.new.microbatch_size for event in recovery.plan_events]
    return {**outcome, **({"events": np.array(sizes)} if sizes else {})}


def failure(place):
    """An error on the last worker is one on all, and leaves no trace."""
    armed = []

    def fail(array):
        if armed:
            raise ValueError("injected")

    raised = []

    def train(model):
        logs = place.train(model)
        if place.count > 1:
            armed.append(True)
            try:
                place.train(model)
            except Exception as error:
                why = "injected" if "injected" in str(error) else str(error)
                raised.append(f"{type(error).__name__}: {why}")
            armed.clear()
        second = place.train(model)
        return models.as_history(
            [
                {key: values[i] for key, values in part.history.items()}
                for part in (logs, second)
                for i in range(3)
            ]
        )

    outcome = place.run(_with_probe(place, fail), train)
    return {**outcome, **({"raised": np.array(raised)} if raised else {})}


def infinite(place):
    """Gradients that are not finite are refused by all."""
    x = models.X.copy()
    x[16] = np.inf
    rollback = callbacks.NonFiniteRollback(report_path=f"bad-{place.index}")

    def train(model):
        return models.fit(
            model, x[:20], models.Y[:20], epochs=1, callbacks=[rollback]
        )

    def train_without(model):
        x, y = models.X[:10], models.Y[:10]
        return models.fit(model, x, y, epochs=1)

    is_alone = place.count == 1
    outcome = place.run(models.regressor, train_without if is_alone else train)
    bad = [event["batch"] for event in rollback.events]
    return {**outcome, **({"bad": np.array(bad)} if bad else {})}


def refusals(place):
    """What would not be the same on all workers, or the same data twice."""
    if place.count == 1:
        return {}
    said = []

    def expect(action):
        try:
            action()
        except ValueError as error:
            said.append(str(error))
        else:
            said.append("")

    with place.scope():
        model = models.regressor(place.model_class)
    off = tf.data.Options()
    off.experimental_distribute.auto_shard_policy = (
        tf.data.experimental.AutoShardPolicy.OFF
    )
    data = tf.data.Dataset.from_tensor_slices((models.X, models.Y)).batch(8)
    same = data.take(2).with_options(off)
    own = data.shard(place.count, place.index).take(1).with_options(off)
    constant = tf.data.Dataset.from_tensors((tf.ones((8, 4)), tf.ones((8, 1))))
    constant = constant.with_options(off)
    expect(lambda: model.train_on_batch(models.X, models.Y))
    expect(lambda: model.fit(same, verbose=0))
    for extra in (
        callbacks.OOMRecovery(plan_ahead=True),
        callbacks.PlanRollback(),
        callbacks.XLACompilation("auto"),
    ):
        expect(
            lambda extra=extra: models.fit(model, epochs=1, callbacks=[extra])
        )
    model.fit(own, verbose=0)
    model.fit(constant, verbose=0)
    return {"said": np.array(said)}


ON_TWO = (
    fit,
    clipping_and_scale,
    masked_tokens,
    statistics,
    dropout,
    compiled,
    eager,
    shortage,
    failure,
    infinite,
    refusals,
    exhausted,
)
ON_THREE = (fit,)
