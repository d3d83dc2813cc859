import http.server
import json
import threading
import time

import pytest

from keras_tfopt.telemetry.alerts import AlertEngine
from keras_tfopt.telemetry.alerts import with_thresholds
from keras_tfopt.telemetry.catalogue import all_alerts
from keras_tfopt.telemetry.history import History
from keras_tfopt.telemetry.history import Snapshot
from keras_tfopt.telemetry.webhook import Webhook

GPU = (("device", "GPU:0"),)
FULL = ("memory_utilization_ratio", GPU)
SCATTERED = ("memory_fragmentation_ratio", GPU)


def told(engine, rows):
    """Returns `(time, name, state)` of what is told over rows of values."""
    history = History()
    events = []
    for time_, values in rows:
        history.append(Snapshot(time_, int(time_), values, {}))
        events += [
            (event.time, event.name.removeprefix("KerasTfopt"), event.state)
            for event in engine.judge(history)
        ]
    return events


def utilization(*rows):
    return [(time_, {FULL: value}) for time_, value in rows]


def test_alert_waits_for_its_time_and_is_over_behind_the_margin():
    rows = utilization(
        (0, 0.9), (30, 0.8), (40, 0.9), (90, 0.9), (100, 0.86), (110, 0.84),
        (120, 0.9), (130, 0.7), (140, 0.7),
    )  # fmt: skip
    assert told(AlertEngine(), rows) == [
        (100, "MemoryAlmostFull", "firing"),
        (130, "MemoryAlmostFull", "resolved"),
    ]


def test_alert_that_comes_back_is_told_after_the_cooldown():
    wave = [(t, 0.9 if t % 200 < 100 else 0.1) for t in range(0, 900, 10)]
    firing = [
        time_
        for time_, _, state in told(
            AlertEngine(cooldown_seconds=350), utilization(*wave)
        )
        if state == "firing"
    ]
    assert firing == [60, 460, 860]


def test_further_conditions_belong_to_the_same_device():
    other = ("memory_utilization_ratio", (("device", "GPU:1"),))
    rows = [(t, {SCATTERED: 0.3, other: 0.6}) for t in range(0, 300, 60)]
    assert told(AlertEngine(), rows) == []
    rows = [(t, {SCATTERED: 0.3, FULL: 0.6}) for t in range(0, 300, 60)]
    assert told(AlertEngine(), rows) == [(120, "MemoryFragmented", "firing")]


def test_counters_and_averages_are_judged():
    recovered = [(0, {("oom_recoveries_total", ()): 0.0})]
    recovered += [(5, {("oom_recoveries_total", ()): 1.0})]
    assert told(AlertEngine(), recovered) == [(5, "OutOfMemory", "firing")]
    norms = [(t, {("gradient_norm", ()): 1.0}) for t in range(60)]
    norms += [(60, {("gradient_norm", ()): 20.0})]
    assert told(AlertEngine(), norms) == [(60, "GradientSpike", "firing")]


def test_thresholds_can_be_replaced():
    alerts = with_thresholds(all_alerts(), {"MemoryAlmostFull": 0.95})
    assert told(AlertEngine(alerts), utilization((0, 0.9), (90, 0.9))) == []
    found = told(AlertEngine(alerts), utilization((0, 0.96), (90, 0.96)))
    # The stronger one, at 0.9, does not come before the weaker.
    assert found == [
        (90, "MemoryAlmostFull", "firing"),
        (90, "MemoryFull", "firing"),
    ]
    alerts = with_thresholds(all_alerts(), {"MemoryAlmostFull": 0.5})
    found = told(AlertEngine(alerts), utilization((0, 0.6), (90, 0.6)))
    assert found == [(90, "MemoryAlmostFull", "firing")]
    with pytest.raises(ValueError, match="Expected: names among"):
        with_thresholds(all_alerts(), {"MemoryIsFull": 0.95})


class Receiver(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        length = int(self.headers["Content-Length"])
        body = json.loads(self.rfile.read(length))
        self.server.bodies.append((self.headers.get_content_type(), body))
        self.server.arrived.set()
        if self.server.is_silent:
            self.server.released.wait(30)
        self.send_response(204)
        self.end_headers()

    def log_message(self, *arguments):
        pass


@pytest.fixture
def server():
    """A server that takes posts, and may be told not to answer."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    server.bodies, server.is_silent = [], False
    server.arrived, server.released = threading.Event(), threading.Event()
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.released.set()
    server.shutdown()
    thread.join()
    server.server_close()


def url_of(server):
    return f"http://127.0.0.1:{server.server_port}/hook?secret=1"


def test_webhook_posts_json_in_order(server):
    hook = Webhook(url_of(server))
    for number in range(3):
        hook.post({"number": number})
    hook.close()
    assert server.bodies == [
        ("application/json", {"number": number}) for number in range(3)
    ]


def test_webhook_never_waits_for_a_server_that_is_silent(server, caplog):
    server.is_silent = True
    hook = Webhook(url_of(server), timeout_seconds=60)
    hook.post({"number": 0})
    assert server.arrived.wait(20)
    start = time.monotonic()
    for number in range(1000):
        hook.post({"number": number})
    hook.close()
    assert time.monotonic() - start < 30
    (said,) = caplog.messages
    assert "too many alerts wait" in said
    assert "secret" not in said


def test_webhook_complains_once_of_a_server_that_is_not_there(caplog):
    hook = Webhook("http://localhost:9/hook", timeout_seconds=2)
    hook.post({})
    hook.post({})
    hook.close()
    # Threads of other tests may still wait for servers of theirs.
    (said,) = [text for text in caplog.messages if "localhost" in text]
    assert said.startswith("Alerts are not delivered to localhost: ")


@pytest.mark.parametrize("url", ["ftp://a/b", "file:///etc/passwd", "", 3])
def test_webhook_refuses_other_addresses(url):
    with pytest.raises(ValueError, match="webhook_url"):
        Webhook(url)
