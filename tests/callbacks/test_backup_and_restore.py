"""Training that is killed and started again ends as if it never was."""

import logging
import os
import shutil
import signal
import time

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_tfopt import AccumModel
from keras_tfopt import TrainingInterrupted
from keras_tfopt import _compat_fit
from keras_tfopt import callbacks
from keras_tfopt.checkpoint.generations import Generations
from keras_tfopt.checkpoint.writer import wait_for_writers
from keras_tfopt.data import position
from tests import builders
from tests import models
from tests.equivalence import Outcome
from tests.equivalence import assert_same
from tests.equivalence import state_of

EPOCHS = 3
BATCHES = 7
ROWS = 4 * BATCHES - 1
_RNG = np.random.default_rng(1)
X = _RNG.normal(size=(ROWS, 4)).astype("float32")
Y = _RNG.normal(size=(ROWS, 1)).astype("float32")


class Noise(keras.layers.Layer):
    """Draws from a seed generator of its own."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.seeds = keras.random.SeedGenerator(5)

    def call(self, inputs, training=None):
        if not training:
            return inputs
        noise = keras.random.normal(
            keras.ops.shape(inputs), dtype=inputs.dtype, seed=self.seeds
        )
        return inputs + 0.1 * noise


def network(cls, compile_with=None, **settings):
    """A model with all kinds of state, which an interrupted step changes."""
    inputs = keras.Input((4,))
    hidden = keras.layers.Dense(6, activation="tanh")(Noise()(inputs))
    hidden = keras.layers.BatchNormalization()(hidden)
    hidden = keras.layers.Dropout(0.3)(hidden)
    model = cls(inputs, keras.layers.Dense(1)(hidden), **settings)
    model.compile(
        **{
            "optimizer": keras.optimizers.Adam(0.05),
            "loss": "mse",
            "metrics": ["mae"],
            **(compile_with or {}),
        }
    )
    return model


def small():
    """A model that is traced fast."""
    layers = [keras.Input((4,)), Noise(), keras.layers.Dense(1)]
    model = keras.Sequential(layers)
    model.compile("adam", "mse")
    return model


def batched():
    return tf.data.Dataset.from_tensor_slices((X, Y))


DATA = {
    "arrays": lambda: (X, Y),
    "shuffled": lambda: batched().shuffle(10, seed=3).batch(4).prefetch(2),
    "shuffled without a seed": lambda: batched().shuffle(10).batch(4),
    "prefetched": lambda: (
        batched().shuffle(10, seed=3).batch(4).prefetch(BATCHES)
    ),
    "repeated": lambda: batched().shuffle(30, seed=3).batch(4).repeat(),
    "unknown length": lambda: (
        batched().filter(lambda x, y: x[0] > -0.5).shuffle(9, seed=1).batch(2)
    ),
    "generator": lambda: models.streamed(models.batches(4, X, Y)),
    "random map": lambda: (
        batched()
        .batch(4)
        .map(lambda x, y: (x + tf.random.normal(tf.shape(x), seed=2), y))
    ),
    "random variables": lambda: batched().batch(4).map(_variable_noise()),
}


def _variable_noise():
    generator = tf.random.Generator.from_seed(3)
    return lambda x, y: (x + generator.normal(tf.shape(x)), y)


def fit(model, data="arrays", extra=(), **kwargs):
    data = DATA[data]() if isinstance(data, str) else data
    x, y = data if isinstance(data, tuple) else (data, None)
    if y is not None:
        kwargs.setdefault("batch_size", 4)
    else:
        kwargs.setdefault("shuffle", False)
    others = [
        keras.callbacks.EarlyStopping("loss", patience=9,
                                      restore_best_weights=True),
        keras.callbacks.ReduceLROnPlateau("loss", patience=1, min_delta=0.2),
    ]  # fmt: skip
    return model.fit(
        x,
        y,
        **{
            "epochs": EPOCHS,
            "verbose": 0,
            "validation_data": (X[:5], Y[:5]),
            "callbacks": [*extra, *others],
            **kwargs,
        },
    )


def fresh(make, seed=0):
    """What a process starts with."""
    keras.utils.clear_session()
    if seed is not None:
        keras.utils.set_random_seed(seed)
    return make()


def undisturbed(make, **kwargs):
    model = fresh(make)
    history = fit(model, **kwargs)
    return Outcome(model, history.history, state_of(model))


class Kill(keras.callbacks.Callback):
    """Raises after a number of steps of the process."""

    def __init__(self, steps):
        super().__init__()
        self.steps = steps

    def get_state(self):
        """Not that of the process before."""

    def set_state(self, state):
        """Counts the steps of this process."""

    def on_train_batch_end(self, batch, logs=None):
        self.steps -= 1
        if self.steps == 0:
            raise models.Interruption


def disturbed(
    make,
    folder,
    kills,
    save_freq=1,
    before=(),
    asynchronous=False,
    **kwargs,
):
    """Trains, killed and started anew after numbers of steps."""
    steps = []
    for kill in [*kills, None]:
        model = fresh(make)
        backup = callbacks.BackupAndRestore(
            folder, save_freq, asynchronous=asynchronous
        )
        count = keras.callbacks.LambdaCallback(
            on_train_batch_begin=lambda batch, logs: steps.append(batch)
        )
        extra = [*before, backup, count]
        if kill is None:
            history = fit(model, extra=extra, **kwargs)
            return Outcome(model, history.history, state_of(model)), steps
        with pytest.raises(models.Interruption):
            fit(model, extra=[*extra, Kill(kill)], **kwargs)


def assert_identical(outcome, expected):
    assert_same(outcome, expected, tolerance=0)


@pytest.mark.filterwarnings("ignore:Your input ran out of data")
@pytest.mark.parametrize("data", DATA)
def test_equals_an_undisturbed_run(data, tmp_path):
    kwargs = {"data": data, "validation_data": None}
    steps = BATCHES
    if data == "repeated":
        kwargs["steps_per_epoch"] = steps = 5
    expected = undisturbed(small, **kwargs)
    # In the first epoch and in the last.
    outcome, _ = disturbed(small, tmp_path / "b", (3, 2 * steps), **kwargs)
    assert_identical(outcome, expected)
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize("epoch", [0, 1])
def test_a_backup_behind_the_end_of_a_shuffle(epoch, tmp_path):
    # Prefetching sees the end of the data batches before training does.
    kwargs = {"data": "prefetched", "validation_data": None}
    wait = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: time.sleep(0.02)
    )
    expected = undisturbed(small, **kwargs)
    outcome, _ = disturbed(
        small, tmp_path, ((epoch + 1) * BATCHES,), before=[wait], **kwargs
    )
    assert_identical(outcome, expected)


def _accumulating(**settings):
    return lambda: network(AccumModel, **settings)


def _stock(**compile_with):
    return lambda: network(keras.Model, compile_with)


def _unbuilt():
    model = keras.Sequential(
        [
            keras.layers.Dense(4),
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(0.4),
            keras.layers.Dense(1),
        ]
    )
    rate = keras.optimizers.schedules.CosineDecay(0.1, 15)
    optimizer = keras.optimizers.AdamW(rate, use_ema=True)
    model.compile(optimizer, "mse", metrics=["mae"])
    return model


def _mixed_precision():
    with_policy = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_float16")
    try:
        return network(keras.Model)
    finally:
        keras.config.set_dtype_policy(with_policy)


MODELS = {
    "unbuilt": _unbuilt,
    "compiled": _stock(jit_compile=True),
    "steps per execution": _stock(steps_per_execution=3),
    "mixed precision": _mixed_precision,
    "accumulating": _accumulating(
        microbatch_size=2, compile_with={"steps_per_execution": 3}
    ),
    "gathering": _accumulating(gather_steps=3),
}


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_models(make, tmp_path):
    expected = undisturbed(make)
    calls = -(-BATCHES // expected.model.steps_per_execution)
    outcome, _ = disturbed(make, tmp_path, (calls + 2,))
    assert_identical(outcome, expected)


@pytest.mark.filterwarnings("ignore:Your input ran out of data")
def test_a_window_that_waits_at_the_end_of_unknown_data(tmp_path):
    make = _accumulating(gather_steps=4)
    data = batched().filter(lambda x, y: True).batch(4)
    expected = undisturbed(make, data=data)

    class KillAtValidation(keras.callbacks.Callback):
        def on_test_begin(self, logs=None):
            raise models.Interruption

    backup = callbacks.BackupAndRestore(tmp_path, 1, asynchronous=False)
    model = fresh(make)
    with pytest.raises(models.Interruption):
        fit(model, data, extra=[backup, KillAtValidation()])
    outcome, steps = disturbed(make, tmp_path, (), data=data)
    # The seventh step found that there is no more data.
    assert steps[0] == BATCHES
    assert_identical(outcome, expected)


@pytest.mark.parametrize(
    ("cls", "is_first", "grow_after"),
    [
        (keras.Model, True, None),
        (keras.Model, False, 5),
        (AccumModel, True, 5),
    ],
)
def test_with_recovery_from_lack_of_memory(cls, is_first, grow_after, tmp_path):
    class Memory:
        rows = None

        def __call__(self, array):
            if self.rows is not None and len(array) > self.rows:
                raise MemoryError("no room")

    memory = Memory()

    def make():
        inputs = keras.Input((4,))
        hidden = builders.Probe(memory)(inputs)
        hidden = keras.layers.Dense(5, activation="tanh")(hidden)
        return models.compiled(cls(inputs, keras.layers.Dense(1)(hidden)))

    def shortage():
        return models.AtBatch(1, lambda model: setattr(memory, "rows", 2))

    def train(kills):
        memory.rows = None
        for kill in [*kills, None]:
            recovery = callbacks.OOMRecovery(grow_after=grow_after)
            backup = callbacks.BackupAndRestore(tmp_path, 1)
            both = [recovery, backup] if is_first else [backup, recovery]
            model = fresh(make)
            if kill is not None:
                with pytest.raises(models.Interruption):
                    fit(model, extra=[*both, shortage(), Kill(kill)],
                        validation_data=None)  # fmt: skip
                continue
            history = fit(
                model, extra=[*both, shortage()], validation_data=None
            )
            events = [(e.step, e.old, e.new) for e in recovery.plan_events]
            return Outcome(model, history.history, state_of(model)), events

    expected, decisions = train(())
    assert decisions[0][-1].microbatch_size == 2
    # Sizes that failed are not forgotten, nor good steps.
    assert (len(decisions) > 3) == (grow_after is not None)
    outcome, events = train((4, 7))
    assert_identical(outcome, expected)
    assert events == decisions


@pytest.fixture
def unseeded():
    seed = _compat_fit.global_seed()
    tf.random.set_seed(None)
    yield
    tf.random.set_seed(seed)


def test_arrays_without_a_seed(tmp_path, unseeded):
    def start():
        return fresh(small, seed=None)

    backup = callbacks.BackupAndRestore(tmp_path / "0", 2)
    with pytest.raises(models.Interruption):
        fit(start(), extra=[backup, Kill(10)])
    wait_for_writers()
    shutil.copytree(tmp_path / "0", tmp_path / "1")
    outcomes = []
    for folder in ("0", "1"):
        backup = callbacks.BackupAndRestore(tmp_path / folder, strict=True)
        model = start()
        history = fit(model, extra=[backup])
        outcomes.append(Outcome(model, history.history, state_of(model)))
    assert_identical(*outcomes)


def test_strict_refuses_what_may_come_in_another_order(tmp_path):
    for data in ("generator", batched().shuffle(5).batch(4).with_options(
        _not_deterministic()
    )):  # fmt: skip
        backup = callbacks.BackupAndRestore(tmp_path, strict=True)
        model = fresh(small)
        with pytest.raises(ValueError, match="Received: strict=True.*Expected"):
            fit(model, data, extra=[backup])
        assert int(model.optimizer.iterations) == 0


def _not_deterministic():
    options = tf.data.Options()
    options.deterministic = False
    return options


def test_strict_refuses_unseeded_data(tmp_path, unseeded):
    backup = callbacks.BackupAndRestore(tmp_path, strict=True)
    with pytest.raises(ValueError, match="no global seed"):
        fit(small(), "shuffled", extra=[backup])


class Rows(keras.utils.PyDataset):
    """Reshuffles its rows by itself after each epoch."""

    def __init__(self, has_state, **kwargs):
        super().__init__(**kwargs)
        self.rows = np.arange(ROWS)
        self.epoch = 0
        if has_state:
            self.get_state = lambda: {"rows": self.rows, "epoch": self.epoch}
            self.set_state = lambda state: vars(self).update(state)

    def __len__(self):
        return BATCHES

    def __getitem__(self, index):
        rows = self.rows[4 * index : 4 * index + 4]
        return X[rows], Y[rows]

    def on_epoch_end(self):
        if hasattr(self, "get_state"):
            self.epoch += 1
            self.rows = np.random.default_rng(self.epoch).permutation(ROWS)


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("has_state", [True, False])
def test_py_datasets(workers, has_state, tmp_path):

    def kwargs():
        return {"data": Rows(has_state, workers=workers), "shuffle": True}

    expected = undisturbed(small, **kwargs())
    for kill in (9, 7):
        backup = callbacks.BackupAndRestore(tmp_path, 1, strict=has_state)
        with pytest.raises(models.Interruption):
            fit(fresh(small), extra=[backup, Kill(kill)], **kwargs())
    outcome, _ = disturbed(small, tmp_path, (), **kwargs())
    assert_identical(outcome, expected)


def test_large_iterator_states_are_replaced(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(position, "MAX_STATE_BYTES", 10)

    expected = undisturbed(small, data="shuffled")
    with caplog.at_level(logging.INFO, "keras_tfopt"):
        outcome, _ = disturbed(small, tmp_path, (9, 7), data="shuffled")
    assert_identical(outcome, expected)
    assert "are skipped: the iterator's state takes" in caplog.text


def test_a_fit_after_one_that_was_restored_is_new(tmp_path):
    model = fresh(small)
    backup = callbacks.BackupAndRestore(tmp_path / "b", 1)
    with pytest.raises(models.Interruption):
        fit(model, extra=[backup, Kill(9)])
    assert fit(model, extra=[backup]).epoch == [0, 1, 2]
    assert fit(model, extra=[backup], epochs=2).epoch == [0, 1]
    assert fit(model, epochs=2).epoch == [0, 1]


def test_a_result_that_is_kept_is_not_trained_again(tmp_path):

    def train():
        backup = callbacks.BackupAndRestore(tmp_path, delete_checkpoint=False)
        count = Kill(-1)
        model = fresh(small)
        history = fit(model, extra=[backup, count])
        outcome = Outcome(model, history.history, state_of(model))
        return outcome, -1 - count.steps, backup

    expected, steps, backup = train()
    assert steps == EPOCHS * BATCHES
    outcome, steps, _ = train()
    assert steps == 0
    assert_identical(outcome, expected)
    # Within a process another `fit` is another run.
    assert fit(expected.model, extra=[backup]).epoch == [0, 1, 2]


def test_early_stopping_keeps_the_backup(tmp_path):
    class Stop(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            self.model.stop_training = epoch == 1

    expected = undisturbed(small, extra=[Stop()])
    first, _ = disturbed(small, tmp_path, (), before=[Stop()])
    assert list(tmp_path.iterdir())
    # As if it had been killed right after it was stopped.
    again, steps = disturbed(small, tmp_path, (), before=[Stop()])
    for outcome in (first, again):
        assert_identical(outcome, expected)
    assert len(steps) < BATCHES


def test_a_stop_inside_of_an_epoch_is_a_place_to_go_on_from(tmp_path):
    expected = undisturbed(small)
    disturbed(small, tmp_path / "b", (), save_freq="epoch",
              before=[models.AtBatch(3, models.stop)])  # fmt: skip
    outcome, steps = disturbed(small, tmp_path / "b", ())
    assert steps[0] == 4
    assert_identical(outcome, expected)
    assert not (tmp_path / "b").exists()


def test_training_is_that_of_stock_keras(tmp_path):
    expected = undisturbed(small)
    outcome, _ = disturbed(small, tmp_path / "b", ())
    assert_identical(outcome, expected)


def test_state_of_other_callbacks(tmp_path):
    class Counter(keras.callbacks.Callback):
        def __init__(self):
            super().__init__()
            self.seen = {"steps": 0}
            self.kept = object()

        def on_train_batch_end(self, batch, logs=None):
            self.seen["steps"] += 1

    class Own(Counter):
        def get_state(self):
            return (self.seen["steps"], np.float32(0.5), np.arange(2))

        def set_state(self, state):
            self.seen["steps"] = state[0]
            self.state = state

    for kill in (5, None):
        counters = Counter(), Own()
        backup = callbacks.BackupAndRestore(tmp_path, 1)
        extra = [counters[0], backup, counters[1]]
        model = fresh(small)
        if kill:
            with pytest.raises(models.Interruption):
                fit(model, extra=[*extra, Kill(kill)])
        else:
            fit(model, extra=extra)
    for counter in counters:
        assert counter.seen["steps"] == EPOCHS * BATCHES
    assert isinstance(counters[1].state[1], np.float32)
    assert list(counters[1].state[2]) == [0, 1]


def test_a_state_that_cannot_be_saved(tmp_path):
    class Own(keras.callbacks.Callback):
        def get_state(self):
            return object()

    backup = callbacks.BackupAndRestore(tmp_path, 1)
    with pytest.raises(ValueError, match="Own.get_state.*Expected: numbers"):
        fit(small(), extra=[backup, Own()])


def _interrupted(tmp_path, make=small, **kwargs):
    backup = callbacks.BackupAndRestore(tmp_path, 2)
    with pytest.raises(models.Interruption):
        fit(fresh(make), extra=[backup, Kill(5)], **kwargs)


def _compiled(**compile_with):
    model = small()
    model.compile(**{"optimizer": "adam", "loss": "mse", **compile_with})
    return model


@pytest.mark.parametrize(
    "model, message",
    [
        (lambda: _unbuilt(), "only in the backup.*only in the model"),
        (
            lambda: _compiled(optimizer="sgd"),
            "adam/.* is only in the backup",
        ),
        (
            lambda: _compiled(steps_per_execution=3),
            "steps_per_execution=3.*Expected.*such as the 1",
        ),
    ],
    ids=["layers", "optimizer", "steps"],
)
def test_another_model_is_refused(model, message, tmp_path):
    _interrupted(tmp_path)
    backup = callbacks.BackupAndRestore(tmp_path)
    with pytest.raises(ValueError, match=f"(?s){message}"):
        fit(fresh(model), extra=[backup])


def test_other_shapes_and_other_data_are_refused(tmp_path):
    def make(units):
        inputs = keras.Input((4,))
        hidden = keras.layers.Dense(units, name="hidden")(inputs)
        model = keras.Model(inputs, keras.layers.Dense(1)(hidden))
        return lambda: models.compiled(model)

    _interrupted(tmp_path, make(5))
    backup = callbacks.BackupAndRestore(tmp_path)
    with pytest.raises(ValueError, match=r"kernel float32\[4, 5\] in the back"):
        fit(fresh(make(6)), extra=[backup])
    with pytest.raises(ValueError, match="3 batches.*the backup has 7"):
        fit(fresh(make(5)), extra=[backup], batch_size=9)


@pytest.mark.parametrize(
    "arguments",
    [
        {"backup_dir": ""},
        {"backup_dir": None},
        {"save_freq": 0},
        {"save_freq": True},
        {"save_freq": "often"},
        {"save_freq": "0s"},
        {"keep": 0},
        {"signals": ("SIGKILL",)},
        {"signals": "SIGTERM"},
    ],
    ids=str,
)
def test_bad_arguments(arguments):
    with pytest.raises(ValueError, match=f"{next(iter(arguments))}.*Expected"):
        callbacks.BackupAndRestore(**{"backup_dir": "b", **arguments})


def test_outside_of_fit(tmp_path):
    backup = callbacks.BackupAndRestore(tmp_path)
    backup.set_model(network(keras.Model))
    with pytest.raises(RuntimeError, match="inside of `fit`"):
        backup.on_train_begin()


@pytest.mark.parametrize("save_freq, count", [("epoch", 2), (5, 4), (False, 0)])
def test_how_often(save_freq, count, tmp_path, monkeypatch):
    written = []
    write = Generations.write

    def counted(self, content, *args):
        written.append((content["epoch"], content["step"]))
        return write(self, content, *args)

    monkeypatch.setattr(Generations, "write", counted)
    backup = callbacks.BackupAndRestore(tmp_path, save_freq, asynchronous=False)
    fit(small(), extra=[backup])
    steps = [epoch * BATCHES + step for epoch, step in written]
    every = BATCHES if save_freq == "epoch" else 5
    assert steps == [every * (index + 1) for index in range(count)]


def test_interval(tmp_path):
    slow = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: time.sleep(0.05)
    )
    backup = callbacks.BackupAndRestore(tmp_path, "0.2s")
    with pytest.raises(models.Interruption):
        fit(small(), extra=[backup, slow, Kill(20)])
    wait_for_writers()
    assert 1 <= len(list(tmp_path.iterdir())) <= 2


def test_a_path_with_a_scheme():
    folder = "ram://backups/run"

    expected = undisturbed(small)
    outcome, steps = disturbed(small, folder, (9,))
    assert_identical(outcome, expected)
    assert len(steps) == 9 + EPOCHS * BATCHES - 8


def test_signals(tmp_path):
    expected = undisturbed(small)
    before = {s: signal.getsignal(s) for s in (signal.SIGTERM, signal.SIGINT)}
    for number in before:
        model = fresh(small)
        backup = callbacks.BackupAndRestore(tmp_path, False)
        send = models.AtBatch(2, lambda _: os.kill(os.getpid(), number))  # noqa: B023
        with pytest.raises(TrainingInterrupted) as caught:
            fit(model, extra=[backup, send])
        assert caught.value.code == 128 + number
        assert {s: signal.getsignal(s) for s in before} == before
        # The step under way is finished: the third of each epoch.
        assert int(model.optimizer.iterations) in (3, 10)
    outcome, steps = disturbed(small, tmp_path, ())
    assert steps[0] == 3
    assert_identical(outcome, expected)


def test_a_signal_behind_the_last_step(tmp_path):
    expected = undisturbed(small)

    def send(epoch, logs):
        if epoch == EPOCHS - 1:
            os.kill(os.getpid(), signal.SIGTERM)

    backup = callbacks.BackupAndRestore(tmp_path / "b")
    signal_at_end = keras.callbacks.LambdaCallback(on_epoch_end=send)
    with pytest.raises(TrainingInterrupted):
        fit(fresh(small), extra=[backup, signal_at_end])
    outcome, steps = disturbed(small, tmp_path / "b", ())
    assert steps == []
    assert_identical(outcome, expected)
    assert not (tmp_path / "b").exists()


def test_a_signal_after_an_exception_means_what_it_meant(tmp_path):
    class Signal(Exception):
        pass

    def note(number, frame):
        raise Signal

    before = signal.signal(signal.SIGUSR1, note)
    try:
        _interrupted(tmp_path)
        assert signal.getsignal(signal.SIGUSR1) is not note
        with pytest.raises(Signal):
            os.kill(os.getpid(), signal.SIGUSR1)
            time.sleep(1)
        assert signal.getsignal(signal.SIGUSR1) is note
    finally:
        signal.signal(signal.SIGUSR1, before)
        for number in (signal.SIGTERM, signal.SIGINT):
            assert getattr(signal.getsignal(number), "__name__", "") != "_note"
