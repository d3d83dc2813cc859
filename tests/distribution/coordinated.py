"""One process of a cluster with parameter servers; the chief runs all cases."""

import json
import os
import pathlib
import signal
import sys
import time
import traceback

from keras_tfopt import distribution

FOLDER = pathlib.Path(sys.argv[1])


def note_process() -> None:
    task = json.loads(os.environ["TF_CONFIG"])["task"]
    path = FOLDER / f"{task['type']}{task['index']}.pid"
    path.write_text(str(os.getpid()), encoding="utf-8")


note_process()
distribution.serve(timeout_seconds=120)
chosen = distribution.strategy(timeout_seconds=120)

import keras  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

from keras_tfopt import AccumModel  # noqa: E402
from keras_tfopt import callbacks  # noqa: E402
from tests import models  # noqa: E402

EPOCHS = 3


def adam():
    return keras.optimizers.Adam(0.01)


def make(optimizer=models.momentum, **compile_with):
    keras.utils.set_random_seed(0)
    with chosen.scope():
        return models.regressor(
            AccumModel, {"optimizer": optimizer(), **compile_with}
        )


def updates(model):
    return int(model.optimizer.iterations.numpy())


def counts(model):
    """Returns how many examples each metric has counted."""
    return [
        float(variable.numpy())
        for variable in model.metrics_variables
        if variable.name == "count" and variable.shape == ()
    ]


class Log(keras.callbacks.Callback):
    """Keeps what Keras tells callbacks."""

    def __init__(self):
        super().__init__()
        self.begun = []
        self.ended = []
        self.epochs = []

    def on_train_batch_begin(self, batch, logs=None):
        self.begun.append(batch)

    def on_train_batch_end(self, batch, logs=None):
        self.ended.append((batch, sorted(logs)))

    def on_epoch_end(self, epoch, logs=None):
        self.epochs.append((updates(self.model), sorted(logs)))


def described(model, history):
    return {
        "history": history.history,
        "iterations": updates(model),
        "weights": [weight.tolist() for weight in model.get_weights()],
    }


def arrays():
    """Two workers, NumPy arrays, validation data and callbacks."""
    model = make(adam, metrics=["mse", keras.metrics.R2Score()])
    log = Log()
    history = model.fit(
        models.X,
        models.Y,
        batch_size=2,
        epochs=EPOCHS,
        validation_data=(models.X, models.Y),
        validation_batch_size=4,
        callbacks=[log, callbacks.JSONLinesLogger(FOLDER / "log.jsonl")],
        verbose=0,
    )
    evaluated = model.evaluate(
        models.X, models.Y, batch_size=4, verbose=0, return_dict=True
    )
    outputs = model.predict(models.X, batch_size=4, verbose=0)
    return {
        **described(model, history),
        "counts": counts(model),
        "evaluated": evaluated,
        "outputs": outputs.tolist(),
        "begun": log.begun,
        "ended": log.ended,
        "epochs": log.epochs,
    }


def workers_own_data():
    """Each worker draws from a dataset of its own."""
    model = make(adam)

    def make_dataset(context):
        del context
        data = tf.data.Dataset.from_tensor_slices((models.X, models.Y))
        return data.repeat().batch(4)

    history = model.fit(make_dataset, steps_per_epoch=9, epochs=2, verbose=0)
    result = {**described(model, history), "counts": counts(model)}
    try:
        model.fit(
            lambda context: make_dataset(context).take(2),
            steps_per_epoch=9,
            verbose=0,
        )
    except ValueError as error:
        result["ended"] = str(error)
    model.fit(models.X, models.Y, batch_size=2, verbose=0)
    return {**result, "counts_after": counts(model)}


def own_step():
    """A model with its own training step, and data that breaks a step."""

    class Net(AccumModel):
        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                loss = self.compute_loss(x, y, self(x, training=True))
            tf.debugging.assert_less(x, 100.0, "an input is too large")
            gradients = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply_gradients(
                zip(gradients, self.trainable_variables, strict=True)
            )
            self._loss_tracker.update_state(loss)
            return {"loss": loss, "own": loss + 1}

    with chosen.scope():
        model = models.regressor(Net)
    broken = np.where(np.arange(26)[:, None] == 20, 200.0, models.X)
    result = {}
    try:
        model.fit(broken, models.Y, batch_size=2, shuffle=False, verbose=0)
    except tf.errors.InvalidArgumentError as error:
        result["error"] = str(error)
    before = updates(model)
    history = model.fit(models.X, models.Y, batch_size=2, verbose=0)
    return {
        **result,
        "updates": updates(model) - before,
        "history": history.history,
    }


def refused():
    """Returns the messages of what cannot work."""
    attempts = {
        "jit_compile": lambda: make(jit_compile=True),
        "steps": lambda: make().fit(lambda context: None),
        "metric": lambda: make(metrics=[Smallest()]).fit(
            models.X, models.Y, verbose=0
        ),
        "oom_recovery": lambda: make().fit(
            models.X, models.Y, verbose=0, callbacks=[callbacks.OOMRecovery()]
        ),
    }
    messages = {}
    for name, attempt in attempts.items():
        try:
            attempt()
            messages[name] = ""
        except ValueError as error:
            messages[name] = str(error)
    return messages


class Smallest(keras.metrics.Metric):
    """The smallest prediction, which is no sum."""

    def __init__(self):
        super().__init__(name="smallest")
        self.least = self.add_variable((), "ones", name="least")

    def update_state(self, y, y_pred, sample_weight=None):
        self.least.assign(keras.ops.minimum(self.least, keras.ops.min(y_pred)))

    def result(self):
        return self.least.value

    def reset_state(self):
        self.least.assign(1e9)


def kill_worker(model):
    note = FOLDER / "worker1.pid"
    if note.exists():
        os.kill(int(note.read_text()), signal.SIGKILL)
        note.unlink()


def worker_dies():
    """A worker is killed while steps are under way."""
    model = make(adam)
    start = time.monotonic()
    history = model.fit(
        models.X,
        models.Y,
        batch_size=1,
        epochs=2,
        callbacks=[models.AtBatch(9, kill_worker)],
        verbose=0,
    )
    return {
        **described(model, history),
        "counts": counts(model),
        "seconds": time.monotonic() - start,
    }


def one_worker():
    """The one that is left trains as a single device does."""
    model = make()
    history = models.fit(model, validation_data=(models.X, models.Y))
    result = described(model, history)
    path = str(FOLDER / "model.weights.h5")
    model.save_weights(path)
    restored = make()
    with chosen.scope():
        restored.optimizer.build(restored.trainable_variables)
    restored.load_weights(path)
    again = models.fit(restored)
    result["restored"] = described(restored, again)
    return result


def backup():
    """A run that ends inside of an epoch goes on there."""

    def train(*more):
        model = make()
        backup = callbacks.BackupAndRestore(str(FOLDER / "backup"), 1)
        return model, models.fit(model, callbacks=[backup, *more])

    interruption = models.AtBatch(1, models.interrupt)
    try:
        train(interruption)
    except models.Interruption:
        pass
    return described(*train())


CASES = [
    arrays,
    workers_own_data,
    own_step,
    refused,
    worker_dies,
    one_worker,
    backup,
]


def main():
    results = {}
    for case in CASES:
        try:
            results[case.__name__] = case()
        except Exception:
            # The others tell more about the reason.
            results[case.__name__] = {"error": traceback.format_exc()}
    path = FOLDER / "results.json"
    path.write_text(json.dumps(results), encoding="utf-8")


main()
