import contextlib
import json
import re
import socket
import time
import urllib.error
import urllib.parse
import urllib.request

import keras
import numpy as np
import pytest
from tensorboard.backend.event_processing import event_accumulator
import tensorflow as tf

from keras_tfopt import AccumModel
from keras_tfopt import ExecutionPlan
from keras_tfopt import callbacks
from keras_tfopt.telemetry.catalogue import all_curves
from tests import builders
from tests import models
from tests import subprocesses

BATCHES = -(-models.ROWS // models.BATCH)
RUN = "keras_tfopt"


def read_run(directory):
    """Returns what TensorBoard's own reader finds in our run."""
    reader = event_accumulator.EventAccumulator(
        str(directory / RUN), size_guidance={"tensors": 0}
    )
    return reader.Reload()


def points(reader, tag):
    """Returns the steps and values of a curve."""
    events = reader.Tensors(f"keras_tfopt/{tag}")
    return [
        (event.step, float(event.tensor_proto.float_val[0])) for event in events
    ]


@contextlib.contextmanager
def tensorboard(directory):
    """Runs a TensorBoard server, and yields a function that asks it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    def ask(path, body=None, **query):
        url = f"http://127.0.0.1:{port}/data/{path}?"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            url + urllib.parse.urlencode(query),
            data,
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=20) as response:
            content = response.read()
        kind = response.headers.get_content_type()
        return json.loads(content) if kind == "application/json" else content

    arguments = ("--logdir", str(directory), "--port", str(port))
    with subprocesses.started(
        "-m", "tensorboard.main", *arguments, "--host", "127.0.0.1"
    ):
        deadline = time.monotonic() + 90
        while time.monotonic() < deadline:
            with contextlib.suppress(urllib.error.URLError):
                if RUN in ask("runs"):
                    break
            time.sleep(0.5)
        yield ask


def test_tensorboard_serves_everything(tmp_path):
    model = models.regressor(AccumModel, microbatch_size=4)
    board = callbacks.TensorBoardDashboard(
        tmp_path,
        histogram_steps=4,
        gradient_histogram_steps=1,
        images=lambda model, epoch: {"noise": np.full((4, 6, 3), 0.5)},
    )
    change = models.AtBatch(
        1,
        lambda model: [
            model.change_plan(ExecutionPlan(count), "a test")
            for count in (4, 2)
        ],
    )
    stock = keras.callbacks.TensorBoard(tmp_path, write_graph=False)
    history = models.fit(
        model,
        validation_data=(models.X, models.Y),
        callbacks=[board, stock, change],
    )

    with tensorboard(tmp_path) as ask:
        assert {"train", "validation", RUN} <= set(ask("runs"))
        scalars = ask("plugin/scalars/tags")[RUN]
        expected = {
            f"keras_tfopt/{tag}"
            for tag in (
                "train/loss",
                "train/samples_per_second",
                "train/step_seconds_p95",
                "train/plan_changes/other",
                "train/microbatch_size",
                "telemetry/overhead_ratio",
                "epoch/val_loss",
            )
        }
        assert expected <= set(scalars)
        shown = ask(
            "plugin/scalars/scalars", run=RUN, tag="keras_tfopt/epoch/loss"
        )
        losses = history.history["loss"]
        assert [(step, value) for _, step, value in shown] == [
            (BATCHES, pytest.approx(losses[0])),
            (2 * BATCHES, pytest.approx(losses[1])),
        ]

        layout = ask("plugin/custom_scalars/layout")
        charts = {
            category["title"]: category["chart"]
            for category in layout["category"]
        }
        assert list(charts)[:2] == ["Training", "Memory"]
        patterns = [
            pattern
            for category in charts.values()
            for chart in category
            for pattern in chart.get("multiline", {}).get("tag", ())
        ]
        margins = [
            series[key]
            for category in charts.values()
            for chart in category
            for series in chart.get("margin", {}).get("series", ())
            for key in ("value", "lower", "upper")
        ]
        for curve in all_curves():
            tag = f"keras_tfopt/{curve.tag}"
            found = [p for p in patterns if re.match(p, tag)]
            assert len(found) + margins.count(tag) == 1, tag
        for pattern, name in (("loss", "val_loss"), ("(?!", "val_mae")):
            (tag,) = [
                p
                for p in patterns
                if f"epoch/{pattern}" in p or (f"epoch/(val_)?{pattern}" in p)
            ]
            lines = ask("plugin/custom_scalars/scalars", run=RUN, tag=tag)
            names = [t.rpartition("/")[2] for t in lines["tag_to_events"]]
            assert name in names and len(names) == 2
        chart = ask(
            "plugin/custom_scalars/scalars",
            run=RUN,
            tag="^keras_tfopt/train/plan_changes(/.*)?$",
        )
        lines = [name.rpartition("/")[2] for name in chart["tag_to_events"]]
        assert chart["regex_valid"] and "out_of_memory" in lines

        assert set(ask("plugin/text/tags")[RUN]) == {
            "keras_tfopt/configuration",
            "keras_tfopt/plan",
            "keras_tfopt/plan_events",
        }
        texts = ask(
            "plugin/text/text", run=RUN, tag="keras_tfopt/configuration"
        )
        cells = re.findall("<td>(.*?)</td>", texts[0]["text"])
        assert dict(zip(cells[::2], cells[1::2], strict=True)).items() >= {
            ("optimizer", "SGD"),
            ("loss", "mse"),
            ("parameters", "31"),
            ("keras", keras.__version__),
        }
        texts = ask("plugin/text/text", run=RUN, tag="keras_tfopt/plan_events")
        # Both of the same step, each in a line of a list.
        assert texts[-1]["text"].count("<li>") == 2
        assert "accumulation_steps=2, 0.0 s lost: a test" in texts[-1]["text"]
        assert texts[0]["step"] == 2

        kernel = model.trainable_variables[0]
        for group in ("weights", "gradients"):
            tag = f"keras_tfopt/{group}/{kernel.path}"
            assert tag in ask("plugin/histograms/tags")[RUN]
            bins = ask("plugin/histograms/histograms", run=RUN, tag=tag)[-1][2]
            assert sum(count for *_, count in bins) == kernel.numpy().size

        images = {"run": RUN, "tag": "keras_tfopt/images/noise", "sample": 0}
        pictures = ask("plugin/images/images", **images)
        assert [p["step"] for p in pictures] == [BATCHES, 2 * BATCHES]
        query = dict(urllib.parse.parse_qsl(pictures[0]["query"]))
        png = ask("plugin/images/individualImage", **query)
        pixels = tf.io.decode_png(png).numpy()
        assert pixels.shape == (4, 6, 3) and (pixels == 128).all()

        body = {
            "experimentName": "",
            "allowedStatuses": ["STATUS_SUCCESS"],
            "colParams": [],
            "startIndex": 0,
            "sliceSize": 9,
        }
        (group,) = ask("plugin/hparams/session_groups", body)["sessionGroups"]
        assert group["hparams"]["microbatch_size"] == 4
        assert group["hparams"]["optimizer"] == "SGD"


def test_points_lie_at_updates_in_the_next_fit_and_after_an_exception(
    tmp_path,
):
    model = models.regressor(AccumModel)
    board = callbacks.TensorBoardDashboard(tmp_path)
    models.fit(model, epochs=1, callbacks=[board])
    interrupt = models.AtBatch(2, models.interrupt)
    with pytest.raises(models.Interruption):
        models.fit(model, callbacks=[board, interrupt])
    models.fit(model, epochs=1, callbacks=[board])
    steps = [step for step, _ in points(read_run(tmp_path), "epoch/loss")]
    # The epoch that was interrupted made its updates.
    assert steps[0] == BATCHES
    assert steps[-1] == 3 * BATCHES


def test_plain_keras_model_has_no_plan(tmp_path):
    model = models.regressor(keras.Model)
    board = callbacks.TensorBoardDashboard(tmp_path)
    models.fit(model, callbacks=[board])
    reader = read_run(tmp_path)
    tags = reader.Tags()["tensors"]
    assert "keras_tfopt/plan" not in tags
    assert "keras_tfopt/train/microbatch_size" not in tags
    assert points(reader, "train/loss")[-1][0] == 2 * BATCHES
    assert all(np.isfinite(v) for _, v in points(reader, "train/loss"))


def test_recovery_is_a_text(tmp_path):
    fault = builders.Fault()
    model = builders.stack(AccumModel, [builders.Probe(forward=fault)])
    fault.arm(1)

    class Disarm(callbacks.OOMRecovery):
        def on_train_begin(self, logs=None):
            super().on_train_begin(logs)
            disarm = lambda event: fault.disarm()  # noqa: E731
            self.model.train_function.control.listeners.append(disarm)

    board = callbacks.TensorBoardDashboard(tmp_path)
    x, y = builders.regression_data(8)
    model.fit(x, y, batch_size=8, verbose=0, callbacks=[board, Disarm()])
    (event,) = read_run(tmp_path).Tensors("keras_tfopt/plan_events")
    assert b"out of memory with 8 of 8 rows" in event.tensor_proto.string_val[0]


def test_pictures_that_fail_do_not_end_training(tmp_path, caplog):
    def broken(model, epoch):
        if epoch == 0:
            raise RuntimeError("no screen")
        return {"wrong": np.ones((2, 2))}

    model = models.regressor(keras.Model)
    board = callbacks.TensorBoardDashboard(tmp_path, images=broken)
    models.fit(model, callbacks=[board])
    assert int(model.optimizer.iterations) == 2 * BATCHES
    assert sum("no screen" in message for message in caplog.messages) == 1
    assert sum("shape (2, 2)" in message for message in caplog.messages) == 1


def gradients_of(model):
    """Returns the gradients of `models.X` by variable, from a plain tape."""
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(models.Y - model(models.X)))
    values = [v.value for v in model.trainable_variables]
    gradients = [g.numpy() for g in tape.gradient(loss, values)]
    paths = [v.path for v in model.trainable_variables]
    return dict(zip(paths, gradients, strict=True))


def scaled_sgd():
    inner = keras.optimizers.SGD(0.1)
    return keras.optimizers.LossScaleOptimizer(inner, initial_scale=256)


@pytest.mark.parametrize(
    ("cls", "settings", "make_optimizer"),
    [
        (keras.Model, {}, lambda: keras.optimizers.SGD(0.1, clipnorm=1e-3)),
        (AccumModel, {"microbatch_size": 4}, scaled_sgd),
    ],
)
def test_histograms_of_gradients_are_those_of_the_whole_batch(
    tmp_path, cls, settings, make_optimizer
):
    keras.utils.set_random_seed(0)
    model = models.regressor(cls, {"optimizer": make_optimizer()}, **settings)
    gradients = gradients_of(model)
    board = callbacks.TensorBoardDashboard(tmp_path, gradient_histogram_steps=1)
    monitor = callbacks.GradientMonitor(interval_steps=1)
    models.fit(
        model, epochs=1, batch_size=models.ROWS, callbacks=[board, monitor]
    )
    reader = read_run(tmp_path)
    for path, gradient in gradients.items():
        (event,) = reader.Tensors(f"keras_tfopt/gradients/{path}")
        assert event.step == 1
        left, right, counts = tf.make_ndarray(event.tensor_proto).T
        assert left[0] == pytest.approx(gradient.min(), rel=1e-4)
        assert right[-1] == pytest.approx(gradient.max(), rel=1e-4)
        if gradient.size > 1:
            np.testing.assert_allclose(left[1:], right[:-1])
            expected, _ = np.histogram(gradient, 30)
            np.testing.assert_array_equal(counts, expected)
        else:
            assert list(counts) == [0] * 29 + [1]
    assert monitor.figures().by_variable().keys() == gradients.keys()


def test_counting_gradients_changes_nothing_and_goes_away(tmp_path):
    def trained(*extra):
        keras.utils.set_random_seed(0)
        layers = [keras.layers.Dense(3), keras.layers.Dense(1)]
        # It is built by its first batch.
        model = models.compiled(keras.Sequential(layers))
        models.fit(model, callbacks=list(extra))
        return model

    board = callbacks.TensorBoardDashboard(tmp_path, gradient_histogram_steps=2)
    model, stock = trained(board), trained()
    for a, b in zip(model.get_weights(), stock.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)
    assert "make_train_function" not in vars(model)
    # Of the updates 2 to 6, the first and each second one behind it.
    path = model.trainable_variables[0].path
    events = read_run(tmp_path).Tensors(f"keras_tfopt/gradients/{path}")
    assert events[-1].step == 2 * BATCHES


def test_gradients_of_an_own_step_are_refused(tmp_path):
    class OwnStep(keras.Model):
        def train_step(self, data):
            return super().train_step(data)

    board = callbacks.TensorBoardDashboard(tmp_path, gradient_histogram_steps=2)
    with pytest.raises(ValueError, match="OwnStep.train_step"):
        models.fit(models.regressor(OwnStep), callbacks=[board])


def test_only_the_chief_writes(tmp_path, monkeypatch):
    model = models.regressor(keras.Model)
    config = {"cluster": {"worker": ["a:1", "b:1"]}}
    for index in (1, 0):
        config["task"] = {"type": "worker", "index": index}
        monkeypatch.setenv("TF_CONFIG", json.dumps(config))
        board = callbacks.TensorBoardDashboard(tmp_path)
        models.fit(model, epochs=1, callbacks=[board])
        assert any(tmp_path.rglob("events*")) == (index == 0)


@pytest.mark.parametrize(
    "arguments",
    [
        {"log_dir": ""},
        {"log_dir": "logs", "histogram_steps": 0},
        {"log_dir": "logs", "gradient_histogram_steps": 0},
        {"log_dir": "logs", "images": 3},
        {"log_dir": "logs", "interval_seconds": -1},
    ],
)
def test_bad_arguments_are_refused(arguments):
    with pytest.raises(ValueError, match="Received: "):
        callbacks.TensorBoardDashboard(**arguments)
