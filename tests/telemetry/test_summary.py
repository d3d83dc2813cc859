import pytest

from keras_tfopt.plan import ExecutionPlan
from keras_tfopt.plan import PlanEvent
from keras_tfopt.telemetry.history import Snapshot
from keras_tfopt.telemetry.summary import summary_rows

CPU = (("device", "CPU:0"),)


def snapshot(time, values):
    return Snapshot(time, 0, values, {})


def rows_of(before, after, changes=(), seconds=10.0):
    rows = summary_rows(
        snapshot(0.0, before), snapshot(seconds, after), changes
    )
    return {row.what: row for row in rows}


def test_counts_from_where_the_training_began():
    rows = rows_of(
        {("steps_total", ()): 5.0, ("samples_total", ()): 50.0},
        {("steps_total", ()): 25.0, ("samples_total", ()): 250.0},
    )
    assert rows["updates"].figure == "20 in 10.0 s, 20 rows a second"


def test_what_is_not_known_is_not_shown():
    assert rows_of({}, {}) == {}


@pytest.mark.parametrize(("share", "has_advice"), [(0.05, 0), (0.5, 1)])
def test_waiting(share, has_advice):
    row = rows_of({}, {("data_wait_ratio", ()): share})["waiting for data"]
    assert row.figure == f"{share:.0%}"
    assert bool(row.advice) == bool(has_advice)


def test_peaks_of_each_device():
    after = {
        ("memory_allocated_peak_bytes", CPU): 3 * 2.0**20,
        ("memory_limit_bytes", CPU): 9 * 2.0**20,
    }
    assert rows_of({}, after)["peak of CPU:0"].figure == "3 MiB of 9"


def test_recoveries_and_changes():
    change = PlanEvent(
        7, "out of memory", ExecutionPlan(), ExecutionPlan(None, 4), 12.0
    )
    rows = rows_of(
        {("oom_recoveries_total", ()): 1.0},
        {
            ("oom_recoveries_total", ()): 2.0,
            ("microbatch_size", ()): 4.0,
            ("nonfinite_steps_total", ()): 3.0,
        },
        [change],
    )
    assert rows["plan at update 7"].figure == "out of memory"
    assert rows["plan at update 7"].advice == "cost 12.0 s"
    recovered = rows["out of memory, recovered"]
    assert recovered.figure == "1"
    assert recovered.advice == "start with microbatch_size=4"
    assert rows["not finite"].figure == "3"


def test_replicas():
    values = {
        ("communication_time_ratio", (("source", "step"),)): 0.25,
        ("load_imbalance_ratio", ()): 0.05,
    }
    rows = rows_of({}, values)
    assert rows["communication"].figure == "25%"
    assert rows["communication"].advice
    assert rows["slowest replica"].figure == "5% longer than the mean"
    assert not rows["slowest replica"].advice
