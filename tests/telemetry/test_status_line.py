import pytest

from keras_tfopt.telemetry.history import Snapshot
from keras_tfopt.telemetry.status_line import clock_time
from keras_tfopt.telemetry.status_line import eta_seconds
from keras_tfopt.telemetry.status_line import status_line

GPU_0, GPU_1 = (("device", "GPU:0"),), (("device", "GPU:1"),)


def snapshot(values):
    return Snapshot(0.0, 0, values, {})


def test_everything():
    values = {
        ("microbatch_size", ()): 32.0,
        ("accumulation_steps", ()): 8.0,
        ("host_memory_rss_bytes", ()): 2.0**30,
        ("memory_allocated_bytes", GPU_0): 3 * 2.0**30,
        ("memory_allocated_bytes", GPU_1): 2 * 2.0**30,
        ("memory_limit_bytes", GPU_0): 16 * 2.0**30,
        # Less, and yet fuller.
        ("memory_limit_bytes", GPU_1): 4 * 2.0**30,
        ("xla_compilations_total", (("result", "success"),)): 2.0,
        ("xla_compilations_total", (("result", "fallback"),)): 1.0,
        ("xla_compile_seconds_total", ()): 4.25,
        ("data_wait_ratio", ()): 0.031,
        ("communication_time_ratio", (("source", "step"),)): 0.12,
    }
    assert status_line(snapshot(values), 200.0) == (
        "microbatch 32 x 8 - GPU:1 2.0 GiB of 4.0 GiB - "
        "XLA 3 in 4.2 s, 1 refused - data wait 3% - communication 12% - "
        "ETA 3:20"
    )


def test_what_is_not_known_is_left_out():
    assert status_line(snapshot({})) == ""
    values = {("host_memory_rss_bytes", ()): 2.0**19}
    values["xla_compilations_total", (("result", "success"),)] = 0.0
    assert status_line(snapshot(values)) == "host 0.5 MiB"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0:00"), (59.6, "1:00"), (3599, "59:59"), (36010, "10:00:10")],
)
def test_times(seconds, text):
    assert clock_time(seconds) == text


def test_eta():
    assert eta_seconds(10.0, 4, 6) == 15.0
    assert eta_seconds(10.0, 0, 6) is None
