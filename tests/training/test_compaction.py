"""When a failed step is worth moving memory together, and how often."""

import numpy as np
import pytest
import tensorflow as tf

from keras_tfopt.errors import OutOfMemoryError
from keras_tfopt.memory import Compaction
from keras_tfopt.memory import Fragmentation
from keras_tfopt.plan import ExecutionPlan
from keras_tfopt.training import compaction as module
from keras_tfopt.training.compaction import CompactionRemedy
from keras_tfopt.training.compaction import compact_model
from keras_tfopt.training.compaction import is_in_pieces
from keras_tfopt.training.compaction import requested_bytes
from keras_tfopt.training.failure import StepFailure
from tests import models
from tests.equivalence import unchanged

PLAN = ExecutionPlan()


def oom(shape="[100,25]", dtype="float"):
    text = f"OOM when allocating tensor with shape{shape} and type {dtype} on"
    return tf.errors.ResourceExhaustedError(None, None, f"in a node\n{text}")


def failure(error=None, tried=(PLAN,)):
    return StepFailure(error or oom(), PLAN, 10, "key", tried)


@pytest.mark.parametrize(
    ("shape", "dtype", "expected"),
    [
        ("[100,25]", "float", 10000),
        ("[]", "double", 8),
        ("[7]", "half", 14),
        ("[7]", "bfloat16", 14),
        ("[7]", "unheard", None),
    ],
)
def test_requested_bytes(shape, dtype, expected):
    assert requested_bytes(oom(shape, dtype)) == expected


def test_requested_bytes_of_another_text():
    assert requested_bytes(MemoryError("no room")) is None


@pytest.mark.parametrize(
    ("needed", "expected"),
    [(None, True), (500, False), (200, True), (50, False), (20, True)],
)
def test_is_in_pieces(needed, expected):
    # 400 free, 100 in one piece; 960 were in use at the most.
    found = Fragmentation(1000, 600, 960, 100)
    assert is_in_pieces(found, needed) is expected


@pytest.fixture
def memory(monkeypatch):
    """Free memory whose largest block grows by what the test says."""
    state = {"gain": 5000, "moves": 0, "found": None}
    pieces = Fragmentation(100_000, 60_000, 90_000, 4_000)

    def compact(model, device):
        state["moves"] += 1
        grown = Fragmentation(100_000, 60_000, 90_000, 4_000 + state["gain"])
        return Compaction(1, 0.1, pieces, grown)

    monkeypatch.setattr(module, "compact_model", compact)
    monkeypatch.setattr(module, "read_fragmentation", lambda _: state["found"])
    state["found"] = pieces
    return state


def remedy(told=None):
    told = [] if told is None else told
    return CompactionRemedy(None, 0.2, told.append)


def test_the_same_plan_again(memory):
    told = []
    plan, reason = remedy(told).propose(failure())
    assert plan == PLAN
    assert "out of memory in pieces" in reason
    assert len(told) == memory["moves"] == 1


@pytest.mark.parametrize(
    "error", [ValueError("data"), OutOfMemoryError("nothing left")], ids=str
)
def test_other_failures_are_left_to_others(memory, error):
    assert remedy().propose(failure(error)) is None
    assert not memory["moves"]


@pytest.mark.parametrize(
    "found",
    [None, Fragmentation(1000, 600, 900, 390), Fragmentation(9, 1, 2, 1)],
    ids=str,
)
def test_nothing_is_moved_where_that_would_not_help(memory, found):
    memory["found"] = found
    assert remedy().propose(failure()) is None
    assert not memory["moves"]


def test_what_does_not_help_becomes_rare(memory):
    tried = remedy()
    memory["gain"] = 0
    proposals = [tried.propose(failure()) for _ in range(12)]
    assert proposals == [None] * 12
    # At the 1st, the 3rd, the 7th failure.
    assert memory["moves"] == 3


def test_a_batch_that_fails_again_is_left_to_others(memory):
    tried = remedy()
    assert tried.propose(failure()) is not None
    assert tried.propose(failure(tried=(PLAN, PLAN))) is None
    assert tried.propose(failure()) is None
    assert tried.propose(failure()) is not None
    assert memory["moves"] == 2


def test_a_model_is_compacted_as_it_is():
    model = models.regressor(models.keras.Model)
    models.fit(model, np.ones((26, 4), "float32"))
    with unchanged(model):
        compact_model(model)
