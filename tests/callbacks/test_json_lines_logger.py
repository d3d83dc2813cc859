import numpy as np
import pytest

from keras_tfopt import AccumModel
from keras_tfopt import ExecutionPlan
from keras_tfopt import callbacks
from keras_tfopt.telemetry.json_lines import read_json_lines
from tests import models

BATCHES = -(-models.ROWS // models.BATCH)


def test_log_tells_values_epochs_and_plans(tmp_path):
    path = tmp_path / "logs" / "training.jsonl"
    model = models.regressor(AccumModel, microbatch_size=4)
    change = models.AtBatch(
        1, lambda model: model.change_plan(ExecutionPlan(2), "a test")
    )
    logger = callbacks.JSONLinesLogger(path)
    history = models.fit(model, callbacks=[logger, change])

    entries = read_json_lines(path)
    epochs = [entry for entry in entries if entry["kind"] == "epoch"]
    assert [entry["logs"]["loss"] for entry in epochs] == history.history[
        "loss"
    ]
    assert [entry["step"] for entry in epochs] == [BATCHES, 2 * BATCHES]
    (plan,) = [entry for entry in entries if entry["kind"] == "plan"]
    assert (plan["step"], plan["reason"]) == (2, "a test")
    assert plan["old"]["microbatch_size"] == 4
    assert plan["new"]["accumulation_steps"] == 2
    last = entries[-1]
    assert (last["kind"], last["step"]) == ("values", 2 * BATCHES)
    assert last["values"]["samples_total"] == 2 * models.ROWS
    assert last["values"]["step_duration_seconds_count"] == 2 * BATCHES
    assert last["values"]["plan_changes_total/other"] == 1


def test_later_run_adds_to_the_file_behind_half_a_line(tmp_path):
    path = tmp_path / "training.jsonl"
    path.write_text('{"kind": "values"}\n{"kind": "val')
    logger = callbacks.JSONLinesLogger(path)
    model = models.regressor(AccumModel)
    models.fit(model, epochs=1, callbacks=[logger])
    before = len(read_json_lines(path))
    models.fit(model, epochs=1, callbacks=[logger])
    entries = read_json_lines(path)
    assert entries[0] == {"kind": "values"}
    assert len(entries) > before > 2
    assert entries[-1]["step"] == 2 * BATCHES


def test_what_is_not_finite_is_null(tmp_path):
    path = tmp_path / "training.jsonl"
    y = np.full_like(models.Y, np.nan)
    models.fit(
        models.regressor(AccumModel),
        y=y,
        callbacks=[callbacks.JSONLinesLogger(path)],
    )
    assert "NaN" not in path.read_text()
    (first, *_) = [e for e in read_json_lines(path) if e["kind"] == "epoch"]
    assert first["logs"]["loss"] is None


@pytest.mark.parametrize("path", ["", None, 3])
def test_bad_path_is_refused(path):
    with pytest.raises(ValueError, match="path"):
        callbacks.JSONLinesLogger(path)
