"""What is alive at the peak of a step is known by layer."""

import json
import sys

import keras
import numpy as np
import pytest

from keras_tfopt import trace_memory
from keras_tfopt.errors import MissingExtraError
from keras_tfopt.memory.allocation_trace import Timeline
from keras_tfopt.memory.memory_trace import MemoryEntry
from keras_tfopt.memory.memory_trace import MemoryTrace
from tests import models
from tests import subprocesses
from tests.training import traced_steps


@pytest.fixture(scope="module")
def traced(tmp_path_factory):
    printed = subprocesses.run_python(
        "-m",
        traced_steps.__name__,
        str(tmp_path_factory.mktemp("profile")),
        TF_CPU_ALLOCATOR_USE_BFC="true",
        TF_CPU_BFC_MEM_LIMIT_IN_MB="500",
        TF_CPP_MIN_LOG_LEVEL="3",
    )
    assert printed.returncode == 0, printed.stderr
    return json.loads(printed.stdout.splitlines()[-1])


@pytest.mark.parametrize("kind", ["whole", "split", "xla"])
def test_nothing_is_changed_and_nothing_is_left_out(traced, kind):
    found = traced[kind]
    assert found["is_same"]
    assert found["sum"] == found["peak"]
    # The first run, which traces, may need more.
    assert found["peak"] <= found["allocator_peak"] < 1.5 * found["peak"]
    assert found["kinds"]["weights"] >= found["weights"]
    assert found["kinds"]["slots"] >= found["kinds"]["weights"]
    assert found["located"] > 10
    assert found["image"] == [800, 1000, 4]
    assert "MiB at the peak" in found["text"]


@pytest.mark.parametrize(("kind", "share"), [("whole", 1), ("split", 4)])
def test_activations_belong_to_their_layers(traced, kind, share):
    found = traced[kind]
    rows = traced_steps.ROWS // share
    one = 4 * rows * traced_steps.UNITS
    for layer in ("first", "deep"):
        # Kept for the gradient of the next layer's weights.
        assert found["activations"][layer] >= one
    assert found["activations"].keys() <= {
        "first", "deep", "norm", "drop", "head", "(loss)",
    }  # fmt: skip
    assert found["unnamed"] < 0.05 * found["peak"]
    assert found["commit"] > found["kinds"]["weights"]


def test_the_split_step_holds_less(traced):
    whole, split = (
        sum(traced[kind]["activations"].values()) for kind in ("whole", "split")
    )
    assert split < whole / 2
    assert "(micro-batch loop)" in traced["split"]["text"]


def test_what_xla_hides_is_not_attributed(traced):
    assert not traced["xla"]["activations"]
    assert traced["xla"]["unattributed"] > 0.5
    assert "one buffer" in traced["xla"]["text"]


def test_another_profiler_session_is_left_alone(traced):
    assert "another session uses" in traced["busy"]


def test_a_device_that_reports_nothing():
    model = models.regressor(keras.Model)
    with pytest.raises(ValueError, match="reports nothing.*USE_BFC=true"):
        trace_memory(model, (models.X, models.Y))
    assert all("call" not in vars(layer) for layer in model.layers)


def test_a_step_of_its_own_is_refused():
    class Own(keras.Model):
        def train_step(self, data):
            return super().train_step(data)

    model = models.compiled(models.network(Own))
    with pytest.raises(ValueError, match="`train_step` of its own.*Expected"):
        trace_memory(model, (models.X, models.Y))


def trace(*entries):
    timeline = Timeline((0.0, 1.0), (50, 100), ())
    return MemoryTrace("CPU:0", 100, 1000, entries, (), timeline, 60)


def test_shares():
    found = trace(
        MemoryEntry("weights", "a", "a/kernel", 50),
        MemoryEntry("activations", "b", "MatMul", 30),
        MemoryEntry("other", "?", "mul", 20),
    )
    assert found.unattributed_ratio == 0.2
    assert found.by_layer() == {"a": 50, "b": 30, "?": 20}
    assert list(found.by_kind()) == ["weights", "activations", "other"]
    assert "20.0% without a layer" in str(found)
    assert "2 more" in str(found.table(rows=1).columns[0]._cells)


def test_a_picture_needs_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    monkeypatch.setitem(sys.modules, "matplotlib.backends.backend_agg", None)
    with pytest.raises(MissingExtraError, match=r"keras-tfopt\[plots\]"):
        trace(MemoryEntry("other", "?", "mul", 100)).image()


def test_a_picture_of_nothing_but_time():
    image = trace(MemoryEntry("other", "?", "mul", 100)).image()
    assert image.dtype == np.uint8
    assert image.shape == (800, 1000, 4)
