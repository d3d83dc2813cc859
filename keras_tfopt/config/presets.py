"""Configurations to start from, by the size of the model."""

from typing import Any

_MEMORY: dict[str, Any] = {
    "growth_enabled": True,
    "out_of_memory_recovery": True,
    "max_gpu_utilization": 0.85,
}
_COMMON: dict[str, Any] = {"memory": _MEMORY, "data": {"monitor": True}}

PRESETS: dict[str, dict[str, Any]] = {
    # Fits with ease: what counts is time.
    "small": {**_COMMON, "compilation": {"mode": "auto"}},
    # Fits with care.
    "medium": {
        **_COMMON,
        "compilation": {"mode": "auto"},
        "memory": {**_MEMORY, "mixed_precision": True},
    },
    # Does not fit as it is.
    "large": {
        **_COMMON,
        "compilation": {"mode": "auto"},
        "memory": {
            **_MEMORY,
            "mixed_precision": True,
            "checkpoint_gradients": True,
            "plan_ahead": True,
            "fragmentation_check_interval": 100,
        },
    },
    # Nothing that changes rounding or takes time to compile.
    "stable": {
        **_COMMON,
        "compilation": {"enabled": False},
        "memory": {**_MEMORY, "leak_detection": True},
    },
}


def with_preset(data: Any) -> Any:
    """Puts the values of the preset that data names under its own.

    Args:
        data: What stands under `tensorflow_optimization`; anything else than a
            dict that names a preset comes back as it is.

    Returns:
        The same, filled up.
    """
    if not isinstance(data, dict):
        return data
    preset = PRESETS.get(str(data.get("preset")), {})
    return _merge(preset, data)


def _merge(below: Any, above: Any) -> Any:
    """Merges dicts; where both have a value, the one above wins."""
    if not (isinstance(below, dict) and isinstance(above, dict)):
        return above
    merged = dict(below)
    for key, value in above.items():
        merged[key] = _merge(below[key], value) if key in below else value
    return merged
