"""Every key does something, or says why it does not."""

import pytest

from keras_tfopt import ConfigurationError
from keras_tfopt.config import building
from keras_tfopt.config.document import Document
from keras_tfopt.config.schema import Configuration
from keras_tfopt.config.schema import TrainingConfiguration
from keras_tfopt.config.validation import validate

# A value for each key that is not its default, and what must stand beside it.
VALUES = {
    "compilation.enabled": False,
    "compilation.mode": "on",
    "compilation.max_shapes": 7,
    "compilation.max_compile_seconds": 7,
    "compilation.on_new_shape": "pad",
    "compilation.dump_dir": "dumps",
    "distribution.strategy": "one_device",
    "distribution.communication": "ring",
    "distribution.cross_device_ops": "hierarchical_copy",
    "distribution.accumulation_steps": 7,
    "distribution.microbatch_size": 7,
    "distribution.communication_frequency": 7,
    "memory.growth_enabled": True,
    "memory.limit": 2**30,
    "memory.allocator": "cuda_malloc_async",
    "memory.max_gpu_utilization": 0.7,
    "memory.out_of_memory_recovery": False,
    "memory.plan_ahead": True,
    "memory.fragmentation_check_interval": 7,
    "memory.leak_detection": True,
    "memory.mixed_precision": True,
    "memory.checkpoint_gradients": True,
    "memory.offload": "activations",
    "memory.swap_threshold_mb": 7,
    "data.monitor": False,
    "checkpoint.dir": "other",
    "checkpoint.every_steps": 7,
    "checkpoint.every": "7s",
    "checkpoint.keep": 7,
    "checkpoint.non_finite_rollback": False,
    "monitoring.metrics_port": 7,
    "monitoring.metrics_addr": "0.0.0.0",
    "monitoring.tensorboard_dir": "logs",
    "monitoring.json_lines": "log.jsonl",
    "monitoring.console": True,
    "monitoring.replicas": True,
    "monitoring.summary": False,
    "monitoring.max_slowdown": 7,
    "monitoring.gradients_every": 7,
    "monitoring.alert_thresholds": {"data_wait": 0.7},
}
BESIDE = {
    "distribution.communication": {"strategy": "auto"},
    "distribution.cross_device_ops": {"strategy": "auto"},
    "memory.offload": {"checkpoint_gradients": True},
    "checkpoint": {"dir": "backup"},
    "monitoring.metrics_addr": {"metrics_port": 0},
}


def what_it_does(section, keys):
    """Returns the effects of a section, as far as they can be compared."""
    document = Document({"tensorflow_optimization": {section: keys}})
    checked = validate(Configuration, document).tensorflow_optimization
    return [
        (
            effect.key,
            effect.text,
            effect.why_not,
            str(getattr(effect.apply, "args", "")),
            str(getattr(effect.apply, "keywords", "")),
        )
        for effect in building.effects_of(checked)
    ]


def test_every_key_is_tried_here():
    keys = set()
    for name, field in TrainingConfiguration.model_fields.items():
        if name != "preset":
            (section,) = (
                member
                for member in field.annotation.__args__
                if member is not type(None)
            )
            keys |= {f"{name}.{key}" for key in section.model_fields}
    assert keys == set(VALUES)


@pytest.mark.parametrize("key", VALUES)
def test_every_key_does_something(key):
    section, _, name = key.partition(".")
    beside = BESIDE.get(key) or BESIDE.get(section, {})

    with_key = what_it_does(section, {**beside, name: VALUES[key]})

    assert with_key != what_it_does(section, beside)


def test_alert_thresholds_are_those_of_the_catalogue():
    thresholds = {
        "gpu_memory": "90%",
        "fragmentation": 0.3,
        "compilation_failure": "10%",
        "compile_time": 0.1,
        "communication_overhead": "30%",
        "load_imbalance": 0.2,
        "data_wait": 0.4,
    }
    document = Document(
        {
            "tensorflow_optimization": {
                "monitoring": {"alert_thresholds": thresholds}
            }
        }
    )
    checked = validate(Configuration, document).tensorflow_optimization
    effects = {e.key: e for e in building.effects_of(checked)}

    notifier = effects["monitoring.alert_thresholds"].apply()
    # Nobody else would know what two of them judge.
    assert "monitoring.replicas" in effects

    values = {alert.name: alert.condition for alert in notifier._alerts}
    almost_full = values["KerasTfoptMemoryAlmostFull"]
    assert almost_full.threshold == pytest.approx(0.9)
    fallback = values["KerasTfoptXLAFallback"]
    assert fallback.threshold == pytest.approx(0.9)


def test_unknown_threshold_is_refused():
    document = Document(
        {"tensorflow_optimization": {"monitoring": {"alert_thresholds": 1}}}
    )
    with pytest.raises(ConfigurationError, match="alert_thresholds"):
        validate(Configuration, document)
