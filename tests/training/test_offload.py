"""What a plan offloads is on the host, and training is the same."""

import dataclasses
import json

import keras
import pytest

from keras_tfopt import AccumModel
from keras_tfopt import ExecutionPlan
from keras_tfopt import callbacks
from keras_tfopt.training.memory_plan import choose
from keras_tfopt.training.memory_probe import Probe
from tests import models
from tests import subprocesses
from tests.equivalence import assert_same
from tests.equivalence import run


@pytest.fixture(scope="module")
def found():
    """What a process with two logical CPUs found, one of them as the host."""
    process = subprocesses.run_python(
        "-m",
        "tests.training.offloaded_steps",
        TF_CPU_ALLOCATOR_USE_BFC="true",
        TF_CPP_MIN_LOG_LEVEL="3",
        # What runs side by side by chance would add to a peak.
        TF_NUM_INTEROP_THREADS="1",
    )
    assert process.returncode == 0, process.stderr
    return json.loads(process.stdout.splitlines()[-1])


@pytest.mark.parametrize("case", ["batch", "half precision", "eager"])
def test_training_is_the_same_bit_for_bit(found, case):
    assert found["comparisons"][case]["difference"] == 0
    assert found["comparisons"][case]["updates"] > 1


@pytest.mark.parametrize("case", ["batch", "half precision"])
def test_the_host_keeps_what_is_offloaded(found, case):
    # Half precision runs in a loop over micro-batches, which is traced twice.
    kept, moved = found["comparisons"][case]["executed"]
    host = {name: n for name, n in moved.items() if "CPU:0" in name}
    assert not any("CPU:0" in name for name in kept)
    copies = [n for name, n in host.items() if name.startswith("to host")]
    assert sum(copies) == host["from host on CPU:0 waits=True"] >= 4
    # Its weights come for the first call and for the second.
    assert host["frozen on CPU:0 waits=True"] >= 2
    assert not any("from" in n or "frozen" in n for n in moved if n not in host)
    # Adam computes where its slots are, and the result goes to the weights.
    updates = moved["AssignSubVariableOp on CPU:1"]
    assert host["Square on CPU:0"] == updates
    assert kept["Square on CPU:1"] >= updates


@pytest.mark.parametrize("case", ["batch", "half precision"])
def test_nothing_leaves_the_host_too_early(found, case):
    _, moved = found["comparisons"][case]["executed"]
    early = [name for name in moved if name.endswith("waits=False")]
    assert not [name for name in early if not name.startswith("to host")]


def test_variables_move_with_the_plan_and_back(found):
    moves = found["moves"]
    assert moves["difference"] == 0
    before, between, after = moves["slots"]
    assert set(before) == set(after) == {"CPU:1"}
    assert between["CPU:0"] > 1
    assert moves["moves"] == 2


@pytest.mark.parametrize("rows", [None, 2048])
def test_the_peak_of_the_device_falls(found, rows):
    kept = found["memory"][f"{rows} None"]
    moved = found["memory"][f"{rows} activations"]
    assert kept["all"] == kept["device"]
    assert moved["device"] < 0.7 * kept["device"]
    assert moved["host"] > 0.3 * kept["device"]


def test_recovery_offloads_one_thing_after_another(found):
    recovery = found["recovery"]
    assert recovery["difference"] < 1e-6
    assert recovery["offloads"] == [
        None,
        ["activations"],
        ["activations", "slots"],
    ]
    assert "the host keeps what is computed again" in recovery["reasons"][1]
    assert "the host holds the slots" in recovery["reasons"][2]
    # Without the micro-batches and the rest, where they cannot even be made.
    offload, reason = recovery["for_slots"]
    assert offload == ["slots"]
    assert "do not fit" in reason


def test_the_planner_weighs_all_and_moves_slots_where_nothing_fits(found):
    text = found["planner"]["text"]
    assert " with remat: " in text
    assert " with remat and offload of activations: " in text
    assert "the optimizer's slots" in text
    assert "slots" in found["planner"]["offload"]


def probe(speed, remat=None, offload=None):
    return Probe(4, 2**20, remat, speed, offload)


@pytest.mark.parametrize(
    ("speeds", "chosen", "reason"),
    [
        ((100, 105, 130), 2, "4 rows at a time with remat make 105 rows"),
        ((100, 125, 130), 1, "offload of activations make 130 rows a second"),
        ((100, 105, 108), 0, "4 rows at a time make 100 rows a second"),
        ((None, 100, 105), 1, "without remat not even one row"),
        ((None, None, 100), 2, "without offload not even one row"),
    ],
    ids=str,
)
def test_what_computes_and_moves_more_must_be_clearly_faster(
    speeds, chosen, reason
):
    ways = [(None, None), (1, None), (1, ("activations",))]
    probes = [
        None if speed is None else probe(speed, *way)
        for speed, way in zip(speeds, ways, strict=True)
    ]
    found, why = choose([one for one in probes if one is not None])
    assert found is probes[chosen]
    assert reason in why


def test_replicas_train_the_same(found):
    assert found["replicas"] == 0


def test_one_memory_saves_nothing_and_says_so():
    expected = run(models.regressor, models.fit, AccumModel)
    with pytest.warns(UserWarning, match="CPU:0.*saves nothing"):
        actual = run(
            models.regressor,
            models.fit,
            AccumModel,
            remat=1,
            offload=("activations", "slots"),
        )
    assert_same(actual, expected)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"offload": "weights"}, "Received: offload='weights'.*Expected: None"),
        ({"offload": ()}, r"Received: offload=\(\)"),
        ({"offload": 1}, "Received: offload=1"),
        ({"offload": "activations"}, "remat=None.*Expected: `remat`"),
        ({"offload": ["frozen_weights"]}, "remat=None"),
        (
            {"offload": "activations", "remat": 1, "jit_compile": True},
            "XLA.*Expected: jit_compile=False",
        ),
    ],
    ids=str,
)
def test_plans_that_cannot_be_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        ExecutionPlan(**settings)


def test_a_plan_is_data():
    plan = ExecutionPlan(remat=1, offload=["slots", "activations"])
    assert plan.offload == ("activations", "slots")
    assert ExecutionPlan(offload="slots", jit_compile=True).offloads("slots")
    assert plan.recomputing(None) == ExecutionPlan(offload="slots")
    assert not plan.compiled(True).jit_compile
    state = json.loads(json.dumps(dataclasses.asdict(plan)))
    assert ExecutionPlan(**state) == plan


def test_a_plan_is_saved_and_cloned(tmp_path):
    model = models.regressor(AccumModel, remat=1, offload="activations")
    model.optimizer.build(model.trainable_variables)
    model.save(tmp_path / "m.keras")
    loaded = keras.saving.load_model(tmp_path / "m.keras")
    assert loaded.plan == model.plan
    assert keras.models.clone_model(model).plan.offload == ("activations",)


def test_xla_is_refused_where_it_is_asked_for():
    with pytest.raises(ValueError, match="XLA compiles for one device"):
        models.regressor(
            AccumModel,
            {"jit_compile": True},
            remat=1,
            offload="activations",
        )


def test_the_policy_of_xla_gives_way(caplog):
    model = models.regressor(AccumModel, remat=1, offload="activations")
    policy = callbacks.XLACompilation(mode="on")
    with pytest.warns(UserWarning, match="saves nothing"):
        models.fit(model, epochs=1, callbacks=[policy])
    assert "runs without XLA: XLA has no operation that offl" in caplog.text
    assert not model.plan.jit_compile


def test_steps_that_follow_no_plan_refuse_it():
    class Own(AccumModel):
        def train_step(self, data):
            return super().train_step(data)

    with pytest.raises(ValueError, match=r"offload=\('slots',\).*Expected"):
        models.regressor(Own, offload="slots")
