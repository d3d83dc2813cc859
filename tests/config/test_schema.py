import pytest
import yaml

from keras_tfopt import ConfigurationError
from keras_tfopt import Optimization
from keras_tfopt.config.presets import PRESETS

EXAMPLE = """
tensorflow_optimization:
  compilation:
    enabled: true
    mode: auto
    max_shapes: 20
  distribution:
    accumulation_steps: 4
    communication_frequency: 2
  memory:
    growth_enabled: true
    max_gpu_utilization: 90%
    mixed_precision: {compute_dtype: bfloat16}
  checkpoint: {every_steps: 1000, dir: backup}
"""


def read(tmp_path, text):
    path = tmp_path / "run.yml"
    path.write_text(text)
    return Optimization.from_yaml(path)


def of(**sections):
    return Optimization.from_dict({"tensorflow_optimization": sections})


def test_reads_what_is_written(tmp_path):
    configuration = read(tmp_path, EXAMPLE).configuration

    assert configuration.compilation.max_shapes == 20
    assert configuration.distribution.communication_frequency == 2
    assert configuration.memory.max_gpu_utilization == pytest.approx(0.9)
    assert configuration.memory.mixed_precision.compute_dtype == "bfloat16"
    assert configuration.checkpoint.every_steps == 1000
    assert configuration.monitoring is None


def test_writes_what_reads_as_the_same(tmp_path):
    run = read(tmp_path, EXAMPLE + "  preset: large\n")

    again = read(tmp_path, run.to_yaml())

    kept = run.configuration.model_copy(update={"preset": None})
    assert again.configuration == kept


@pytest.mark.parametrize(("word", "mode"), [("on", "on"), ("off", "off")])
def test_switches_of_yaml_are_words(tmp_path, word, mode):
    run = read(
        tmp_path, f"tensorflow_optimization: {{compilation: {{mode: {word}}}}}"
    )
    assert run.configuration.compilation.mode == mode


def test_section_without_keys_has_its_defaults(tmp_path):
    run = read(tmp_path, "tensorflow_optimization:\n  memory:\n")
    assert run.configuration.memory.out_of_memory_recovery


@pytest.mark.parametrize("value", [True, False])
def test_true_means_the_defaults(value):
    memory = of(
        memory={"mixed_precision": value, "checkpoint_gradients": value}
    ).configuration.memory

    assert (memory.mixed_precision is not None) is value
    assert memory.checkpoint_gradients == ("auto" if value else None)


@pytest.mark.parametrize("name", PRESETS)
def test_presets(name):
    run = of(preset=name, memory={"max_gpu_utilization": 0.5})

    memory = run.configuration.memory
    assert memory.max_gpu_utilization == 0.5
    assert memory.growth_enabled
    mixed = PRESETS[name]["memory"].get("mixed_precision", False)
    assert (memory.mixed_precision is not None) is mixed


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"memroy": {}}, "unknown key .*memroy'. Did you mean 'memory'"),
        (
            {"memory": {"mixed_precision": {"lossscale": 3}}},
            "unknown key .*lossscale'. Did you mean 'loss_scale'",
        ),
        (
            {"monitoring": {"zzz": 1}},
            r"unknown key .*zzz'. Expected: one of \['metrics_port'",
        ),
        ({"preset": "huge"}, "preset'. Received: 'huge'. Expected: 'small'"),
        (
            {"memory": {"max_gpu_utilization": 85}},
            "Received: 85. Expected: a share from 0 to 1",
        ),
        (
            {"memory": {"checkpoint_gradients": 0}},
            "Received: 0. Expected: greater than or equal to 1",
        ),
        (
            {"memory": {"growth_enabled": True, "limit": "2GB"}},
            "one of growth_enabled and limit",
        ),
        (
            {"compilation": {"enabled": "yes"}},
            "Received: 'yes'. Expected: a valid boolean",
        ),
        (
            {"distribution": {"accumulation_steps": 2, "microbatch_size": 2}},
            "one of accumulation_steps and microbatch_size",
        ),
        (
            {"distribution": {"communication": "ring"}},
            "a strategy, such as 'auto'",
        ),
        ({"checkpoint": {}}, "checkpoint.dir'.*Received.*Expected: Field req"),
        (
            {"checkpoint": {"dir": "d", "every": "1h", "every_steps": 2}},
            "one of every_steps and every",
        ),
        (
            {"distribution": {"accumulation_steps": 2.0}},
            "Received: 2.0. Expected: a valid integer",
        ),
    ],
)
def test_refuses(sections, message):
    with pytest.raises(ConfigurationError, match=message):
        of(**sections)


def test_refuses_all_at_once_with_lines(tmp_path):
    text = EXAMPLE.replace("max_shapes", "max_shape").replace("90%", "190%")
    with pytest.raises(ConfigurationError) as caught:
        read(tmp_path, text)

    first, second = str(caught.value).splitlines()
    assert "run.yml, line 6: unknown key" in first
    assert "run.yml, line 12: invalid value" in second


def test_needs_its_key():
    with pytest.raises(ConfigurationError, match="tensorflow_optimization"):
        Optimization.from_dict({"memory": {}})


def test_json_schema_describes_every_key():
    schema = Optimization.json_schema()

    sections = schema["$defs"]
    assert sections["MemorySection"]["additionalProperties"] is False
    for section in sections.values():
        for name, key in section["properties"].items():
            assert "description" in key, name
    # Editors read it as JSON; YAML is a superset.
    assert yaml.safe_load(str(schema["title"])) == "Configuration"
