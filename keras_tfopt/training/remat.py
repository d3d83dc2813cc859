"""Rematerialization of models, chosen by numbers, names or bytes."""

import math
from typing import Any

import keras

from keras_tfopt.accumulation.remat import check_remat
from keras_tfopt.accumulation.remat import drop_remat
from keras_tfopt.accumulation.remat import keep_remat
from keras_tfopt.accumulation.remat import main_part
from keras_tfopt.accumulation.segments import Segment
from keras_tfopt.accumulation.segments import name_segments
from keras_tfopt.memory.segmentation import Profile
from keras_tfopt.memory.segmentation import Span
from keras_tfopt.memory.segmentation import fastest_within
from keras_tfopt.memory.segmentation import lowest_peak
from keras_tfopt.plan import Remat
from keras_tfopt.plan import check_positive_integer
from keras_tfopt.plan import normalized_remat
from keras_tfopt.training.activation_profile import functional_part
from keras_tfopt.training.activation_profile import profile_activations
from keras_tfopt.training.checks import is_manageable


def apply_remat(
    model: keras.Model,
    *,
    every: int | None = None,
    names: Any = None,
    larger_than: int | None = None,
    budget: int | None = None,
    batch: Any = None,
) -> Remat:
    """Rematerializes a model, which then trains in less memory and more time.

    What the chosen layers compute is not kept for the backward pass but
    computed again in it; see `remat`. An `AccumModel` gets it as its plan. Any
    other model is changed in place: it trains so in a stock `fit`, under a
    distribution strategy, and in its own `train_step`. Saving and cloning see
    nothing of it.

    With `budget`, the segments are chosen by dynamic programming over what a
    trace of the step shows to be kept: the cheapest to compute again that stay
    within it. `budget=0` finds the lowest peak.

    Example:

    ```python
    import keras
    from keras_tfopt import apply_remat
    from keras_tfopt import remove_remat

    inputs = outputs = keras.Input((8,))
    for _ in range(6):
        outputs = keras.layers.Dense(32, activation="gelu")(outputs)
    model = keras.Model(inputs, keras.layers.Dense(1)(outputs))
    model.compile("adam", "mse")
    apply_remat(model, every=2)
    remove_remat(model)
    batch = keras.ops.ones((64, 8)), keras.ops.ones((64, 1))
    print(apply_remat(model, budget=80_000, batch=batch))
    ```

    Args:
        model: A built Keras model; compiled where `batch` is needed.
        every: Integer. So many layers of a functional or Sequential model are
            computed again together. 1 takes each layer of any model by itself.
        names: List of names of layers, at any depth, and of pairs of names: all
            that a functional model calls from the first to the last.
        larger_than: Integer. Bytes; layers that keep more are computed again,
            each by itself. Needs `batch`.
        budget: Integer. Bytes that activations may take at the peak. Needs
            `batch`.
        batch: Nest `(x, y)` or `(x, y, sample_weight)`, of the rows that pass
            through the model at once: those of a micro-batch.

    Returns:
        What was applied, as `ExecutionPlan` takes it; `None` if nothing needs
        to be computed again.

    Raises:
        ValueError: If not exactly one choice is given, or if the model has no
            such layers, or if the budget cannot be kept.

    Reference:
        Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016,
        https://arxiv.org/abs/1604.06174
    """
    _check_choice(every, names, larger_than, budget, batch)
    remove_remat(model)
    if every is not None or names is not None:
        check_positive_integer("every", every)
        remat = normalized_remat(names if every is None else every)
    else:
        profile = profile_activations(model, batch)
        if larger_than is not None:
            spans = _larger_than(profile, larger_than)
        else:
            spans = _within(profile, budget or 0)
        remat = spans_as_remat(model, spans)
    check_remat(model, remat)
    if hasattr(model, "change_plan") and is_manageable(model):
        model.change_plan(model.plan.recomputing(remat), "apply_remat")
    else:
        keep_remat(model, remat)
    return remat


def remove_remat(target: keras.layers.Layer) -> None:
    """Takes back what `remat` or `apply_remat` did to a layer or a model.

    Example:

    ```python
    import keras
    from keras_tfopt import remat
    from keras_tfopt import remove_remat

    layer = remat(keras.layers.Dense(4))
    remove_remat(layer)
    ```

    Args:
        target: Keras layer or model. Nothing happens if it has none.
    """
    drop_remat(target)
    if hasattr(target, "change_plan"):
        target.change_plan(target.plan.recomputing(None), "remove_remat")


def segment_length(model: keras.Model) -> int:
    """Returns how many layers to recompute together without measuring.

    Kept are the inputs of all segments and the activations of one of them, of
    which the root makes the least. Where calls are not known, it is each layer
    by itself.
    """
    if functional_part(model) is None:
        return 1
    return max(1, round(math.sqrt(len(model.layers))))


def spans_as_remat(model: keras.Model, spans: list[Span]) -> Remat:
    """Returns spans of calls as a plan has them."""
    segments = [Segment(start, stop) for start, stop in spans]
    return name_segments(functional_part(model), segments)


def lowest_remat(model: keras.Model, batch: Any) -> Remat:
    """Returns what to compute again for the lowest peak.

    Args:
        model: A compiled Keras model.
        batch: Nest of tensors.

    Returns:
        As for `ExecutionPlan`. Where the calls of a model are not known, each
        of its layers by itself.
    """
    if functional_part(model) is None:
        return 1 if main_part(model).layers else None
    profile = profile_activations(model, batch)
    return spans_as_remat(model, lowest_peak(profile))


def _within(profile: Profile, budget: int) -> list[Span]:
    if not budget:
        return lowest_peak(profile)
    spans = fastest_within(profile, budget)
    if spans is None:
        least = profile.peak(lowest_peak(profile))
        raise ValueError(
            "Invalid value for argument `budget`. Received: "
            f"budget={budget}. Expected: at least {least} bytes, the lowest "
            f"peak of {len(profile.names)} calls, or a batch of fewer rows."
        )
    return spans


def _larger_than(profile: Profile, size: int) -> list[Span]:
    calls = range(len(profile.names))
    return [
        (call, call + 1)
        for call in calls
        if profile.kept(call, call + 1) > size
    ]


def _check_choice(
    every: int | None,
    names: Any,
    larger_than: int | None,
    budget: int | None,
    batch: Any,
) -> None:
    given = {
        "every": every,
        "names": names,
        "larger_than": larger_than,
        "budget": budget,
    }
    chosen = [name for name, value in given.items() if value is not None]
    if len(chosen) != 1:
        raise ValueError(
            "Arguments `every`, `names`, `larger_than` and `budget` exclude "
            f"each other. Received: {chosen or 'none of them'}. Expected: one."
        )
    (name,) = chosen
    if name not in ("larger_than", "budget"):
        return
    value = given[name]
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(
            f"Invalid value for argument `{name}`. Received: {name}={value!r}. "
            "Expected: a number of bytes, at least 0."
        )
    if batch is None:
        raise ValueError(
            f"What layers keep depends on the rows. Received: {name}={value} "
            "without a batch. Expected: `batch`, of the rows of a micro-batch."
        )
