import json
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request

import keras
import pytest

from keras_tfopt import AccumModel
from keras_tfopt import callbacks
from keras_tfopt.telemetry.dashboards import write_dashboards
from keras_tfopt.telemetry.worker import worker_of
from tests import models
from tests import subprocesses
from tests.telemetry import prometheus_tools

BATCHES = -(-models.ROWS // models.BATCH)

# Waits until its parent has read it, at most a minute.
SERVED_TRAINING = """
import sys, time
import keras, numpy as np
from keras_tfopt import AccumModel, callbacks

inputs = keras.Input((4,))
model = AccumModel(inputs, keras.layers.Dense(1)(inputs), microbatch_size=4)
model.compile("sgd", "mse")
exporter = callbacks.PrometheusExporter(port=0)

def tell(epoch, logs):
    if epoch == 0:
        print(exporter.port, flush=True)
    model.stop_training = time.monotonic() > end

end = time.monotonic() + 60
told = keras.callbacks.LambdaCallback(on_epoch_end=tell)
x, y = np.ones((10, 4)), np.ones((10, 1))
model.fit(x, y, epochs=10**6, verbose=0, callbacks=[exporter, told])
"""


def read(url):
    with urllib.request.urlopen(url, timeout=10) as response:
        return response.read().decode()


def scrape(port):
    return read(f"http://127.0.0.1:{port}/metrics")


def value_in(text, series):
    """Returns the value of a series in a text, `None` without one."""
    for line in text.splitlines():
        name, _, value = line.rpartition(" ")
        if name == f"keras_tfopt_{series}":
            return float(value)
    return None


class Scrape(keras.callbacks.Callback):
    """Reads what an exporter serves, once it has served some steps."""

    def __init__(self, exporter):
        super().__init__()
        self.exporter = exporter
        self.texts = []

    def on_epoch_end(self, epoch, logs=None):
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            text = scrape(self.exporter.port)
            if value_in(text, "steps_total") == BATCHES * (epoch + 1):
                break
            time.sleep(0.1)
        self.port = self.exporter.port
        self.texts.append(text)


def free_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


def test_training_is_served_while_it_runs():
    model = models.regressor(AccumModel, microbatch_size=4)
    exporter = callbacks.PrometheusExporter(port=0)
    scraped = Scrape(exporter)
    history = models.fit(model, epochs=2, callbacks=[exporter, scraped])

    first, second = scraped.texts
    assert value_in(first, "steps_total") == BATCHES
    assert value_in(second, "samples_total") == 2 * models.ROWS
    loss = value_in(second, "loss")
    assert loss == pytest.approx(history.history["loss"][1])
    assert value_in(second, "microbatch_size") == 4
    buckets = 'step_duration_seconds_bucket{le="+Inf"}'
    assert value_in(second, buckets) == 2 * BATCHES
    assert value_in(second, "step_duration_seconds_count") == 2 * BATCHES
    assert f'keras="{keras.__version__}"' in second
    assert "gradient_norm" not in second
    assert "NaN" not in second
    with pytest.raises(urllib.error.URLError):
        scrape(scraped.port)
    assert exporter.port == 0


@prometheus_tools.needs_promtool
def test_promtool_accepts_what_is_served():
    exporter = callbacks.PrometheusExporter(port=0)
    scraped = Scrape(exporter)
    model = models.regressor(keras.Model)
    models.fit(model, epochs=1, callbacks=[exporter, scraped])
    said = prometheus_tools.promtool("check", "metrics", text=scraped.texts[0])
    assert said == ""


def test_port_that_is_taken_is_a_warning(caplog):
    model = models.regressor(keras.Model)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        exporter = callbacks.PrometheusExporter(port=port)
        models.fit(model, callbacks=[exporter])
    assert int(model.optimizer.iterations) == 2 * BATCHES
    (said,) = [m for m in caplog.messages if "No metrics at" in m]
    assert f"127.0.0.1:{port}" in said


def test_port_is_free_again_after_an_exception():
    port = free_port()
    model = models.regressor(AccumModel)
    exporter = callbacks.PrometheusExporter(port=port)
    interrupt = models.AtBatch(1, models.interrupt)
    with pytest.raises(models.Interruption):
        models.fit(model, callbacks=[exporter, interrupt])
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            scrape(port)
        except OSError:
            # Closed, or about to be.
            break
        time.sleep(0.1)
    socket.create_server(("127.0.0.1", port)).close()
    # And the next `fit` serves again.
    scraped = Scrape(exporter)
    scraped.on_epoch_end = lambda epoch, logs: scraped.texts.append(
        scrape(port)
    )
    models.fit(model, callbacks=[exporter, scraped])
    assert scraped.texts


def test_file_holds_the_last_values(tmp_path):
    path = tmp_path / "training.prom"
    exporter = callbacks.PrometheusExporter(port=None, textfile=path)
    models.fit(models.regressor(AccumModel), callbacks=[exporter])
    text = path.read_text()
    assert value_in(text, "steps_total") == 2 * BATCHES
    # What has ended is not stalled.
    assert value_in(text, "last_step_timestamp_seconds") is None
    assert list(tmp_path.iterdir()) == [path]


def test_file_that_cannot_be_written_is_a_warning(tmp_path, caplog):
    path = tmp_path / "missing" / "training.prom"
    exporter = callbacks.PrometheusExporter(port=None, textfile=path)
    model = models.regressor(AccumModel)
    models.fit(model, callbacks=[exporter])
    assert int(model.optimizer.iterations) == 2 * BATCHES
    assert sum("training goes on" in m for m in caplog.messages) == 1


def test_workers_on_a_host_take_ports_in_turn():
    cluster = {"chief": ["a:1"], "worker": ["b:1", "a:2", "b:2"]}

    def config(kind, index):
        task = {"type": kind, "index": index}
        return json.dumps({"cluster": cluster, "task": task})

    assert worker_of(None) is None
    assert worker_of(json.dumps({"cluster": {"worker": ["a:1"]}})) is None
    assert worker_of(config("chief", 0)) == ("chief-0", 0)
    assert worker_of(config("worker", 0)) == ("worker-0", 0)
    assert worker_of(config("worker", 1)) == ("worker-1", 1)
    assert worker_of(config("worker", 2)) == ("worker-2", 1)
    assert worker_of(config("evaluator", 0)) is None


def test_worker_is_a_label(monkeypatch, tmp_path):
    cluster = {"worker": ["a:1", "b:1"]}
    task = {"type": "worker", "index": 1}
    path = tmp_path / "training.prom"
    exporter = callbacks.PrometheusExporter(port=None, textfile=path)
    model = models.regressor(keras.Model)
    monkeypatch.setenv(
        "TF_CONFIG", json.dumps({"cluster": cluster, "task": task})
    )
    models.fit(model, callbacks=[exporter])
    steps = value_in(path.read_text(), 'steps_total{worker="worker-1"}')
    assert steps == 2 * BATCHES


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"port": 70000}, "Received: port=70000"),
        ({"port": "9090"}, "Received: port='9090'"),
        ({"port": None}, "Expected: one of them"),
        ({"interval_seconds": 0}, "Received: interval_seconds=0"),
    ],
)
def test_bad_arguments_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        callbacks.PrometheusExporter(**arguments)


@prometheus_tools.needs_prometheus
def test_prometheus_scrapes_a_training_and_answers(tmp_path):
    with subprocesses.started("-c", SERVED_TRAINING) as training:
        target = f"127.0.0.1:{int(training.stdout.readline())}"
        write_dashboards(tmp_path, targets=(target,), interval_seconds=1)
        address = f"127.0.0.1:{free_port()}"
        server = subprocess.Popen(
            [
                "prometheus",
                f"--config.file={tmp_path}/prometheus/prometheus.yml",
                f"--storage.tsdb.path={tmp_path}/data",
                f"--web.listen-address={address}",
            ],
            stderr=subprocess.DEVNULL,
        )
        try:
            query = urllib.parse.quote("rate(keras_tfopt_samples_total[10s])")
            found = ask(f"http://{address}/api/v1/query?query={query}")
            rules = ask(f"http://{address}/api/v1/rules", key="groups")
        finally:
            server.kill()
            server.wait()
    assert found[0]["metric"]["job"] == "keras_tfopt"
    assert float(found[0]["value"][1]) > 0
    assert {rule["health"] for rule in rules[0]["rules"]} <= {"ok", "unknown"}


def ask(url, key="result"):
    """Asks Prometheus until it knows something."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            found = json.loads(read(url))["data"][key]
        except urllib.error.URLError:
            found = []
        if found:
            return found
        time.sleep(0.3)
    raise AssertionError(f"{url} knows nothing.")
