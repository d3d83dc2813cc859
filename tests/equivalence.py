"""Compares training with micro-batches to stock Keras on the whole batch."""

from collections.abc import Callable
import contextlib
import dataclasses
from typing import Any

import keras
import numpy as np

from keras_tfopt import AccumModel

TOLERANCE = 1e-6


@dataclasses.dataclass
class Outcome:
    """Everything that a training run leaves behind, as NumPy arrays."""

    model: keras.Model
    history: dict[str, list[float]]
    variables: dict[str, np.ndarray]


def run(
    make_model: Callable[..., keras.Model],
    fit: Callable[[keras.Model], Any],
    *args: Any,
    **settings: Any,
) -> Outcome:
    """Makes a model from a fixed seed, trains it, and returns the outcome."""
    keras.utils.clear_session()
    keras.utils.set_random_seed(0)
    model = make_model(*args, **settings)
    result = fit(model)
    history = result.history if hasattr(result, "history") else {}
    return Outcome(model, history, state_of(model))


def state_of(model: keras.Model) -> dict[str, np.ndarray]:
    """Returns all state of a model: weights, slots, seeds, metrics."""
    variables = [
        *model.variables,
        *(model.optimizer.variables if model.optimizer else []),
        *model.metrics_variables,
    ]
    return {
        f"{index}:{variable.path}": variable.numpy()
        for index, variable in enumerate(variables)
    }


def assert_same(
    actual: Outcome,
    expected: Outcome,
    tolerance: float = TOLERANCE,
    ignore: tuple[str, ...] = (),
) -> None:
    """Compares two outcomes, relative to the largest entry of each tensor.

    Args:
        actual: Outcome of the run under test.
        expected: Outcome of the stock run.
        tolerance: Float. Largest difference, relative where values exceed 1.
        ignore: Parts of the paths of variables to leave out, for state that
            differs by nature (a seed that is drawn once per micro-batch).
    """
    assert actual.history.keys() == expected.history.keys()
    for key, values in expected.history.items():
        np.testing.assert_allclose(
            actual.history[key], values, rtol=tolerance, atol=tolerance,
            err_msg=f"history[{key!r}]",
        )  # fmt: skip
    assert len(actual.variables) == len(expected.variables)
    pairs = zip(
        actual.variables.items(), expected.variables.items(), strict=True
    )
    for (_, value), (path, wanted) in pairs:
        if any(part in path for part in ignore):
            continue
        assert value.dtype == wanted.dtype, path
        scale = max(1.0, float(np.max(np.abs(wanted), initial=0)))
        np.testing.assert_allclose(
            value, wanted, rtol=0, atol=tolerance * scale, err_msg=path
        )


def assert_equal_training(
    make_model: Callable[..., keras.Model],
    fit: Callable[[keras.Model], Any],
    *,
    accum_class: type = AccumModel,
    stock_class: type = keras.Model,
    tolerance: float = TOLERANCE,
    ignore: tuple[str, ...] = (),
    **settings: Any,
) -> Outcome:
    """Trains with stock Keras and with micro-batches, and compares.

    Args:
        make_model: Callable `(model_class, **settings)` that returns a compiled
            model.
        fit: Callable that trains the model it is given.
        accum_class: Class under test, the first argument of `make_model`.
        stock_class: Class to compare with.
        tolerance: As for `assert_same`.
        ignore: As for `assert_same`.
        **settings: `accumulation_steps`, `microbatch_size`, `gather_steps`.

    Returns:
        `Outcome` of the run under test.
    """
    expected = run(make_model, fit, stock_class)
    actual = run(make_model, fit, accum_class, **settings)
    assert_same(actual, expected, tolerance, ignore)
    return actual


@contextlib.contextmanager
def unchanged(model: keras.Model) -> Any:
    """Asserts that a block leaves all state of a model as it was."""
    before = state_of(model)
    yield
    after = state_of(model)
    assert after.keys() == before.keys()
    for path, value in before.items():
        np.testing.assert_array_equal(after[path], value, err_msg=path)
