"""How far the distributions of weights have moved."""

from typing import Any

import numpy as np

_BINS = 10
# Fewer values in a bin say nothing about a distribution.
_MIN_SIZE = 10 * _BINS
# Larger variables are sampled: the index is then off by about 1e-4.
_MAX_SIZE = 2**17
# An empty bin has no logarithm.
_LEAST_SHARE = 1e-4


class WeightDrift:
    """Compares weights with what they were, variable by variable.

    It keeps the deciles of each variable, not its values. Variables of fewer
    than 100 values are left out, and those that began with equal values.

    Args:
        variables: List of Keras variables, whose values are the reference.
    """

    def __init__(self, variables: list[Any]) -> None:
        self._references = []
        for variable in variables:
            values = _sample(variable)
            if values.size < _MIN_SIZE:
                continue
            edges = inner_edges(values)
            if edges.size:
                counts = bin_counts(values, edges)
                self._references.append((variable, edges, counts))

    def measure(self) -> dict[str, float]:
        """Returns the population stability index of each variable, by path."""
        found = {}
        for variable, edges, expected in self._references:
            counts = bin_counts(_sample(variable), edges)
            if counts.any():
                found[variable.path] = stability_index(expected, counts)
        return found


def inner_edges(values: np.ndarray) -> np.ndarray:
    """Returns the deciles of values, each once, above the least value."""
    edges = np.unique(np.quantile(values, np.arange(1, _BINS) / _BINS))
    return edges[edges > values.min()]


def bin_counts(values: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Returns how many values lie before, between and behind edges."""
    positions = np.searchsorted(edges, values, side="right")
    return np.bincount(positions, minlength=edges.size + 1)


def stability_index(expected: np.ndarray, actual: np.ndarray) -> float:
    """Returns the population stability index of counts in the same bins.

    It is the sum of `(a - e) * log(a / e)` over the shares `a` and `e` of the
    bins: 0 for equal distributions, and above 0.25, by the usual rule, for
    ones that differ much.

    Args:
        expected: Array of the counts of the reference.
        actual: Array of counts.
    """
    e, a = (
        np.maximum(counts / counts.sum(), _LEAST_SHARE)
        for counts in (expected, actual)
    )
    return float(np.sum((a - e) * np.log(a / e)))


def _sample(variable: Any) -> np.ndarray:
    """Returns the finite values of a variable, or the same part of them."""
    values = np.ravel(variable.numpy())
    if values.size > _MAX_SIZE:
        # At random: a fixed distance may meet one column only.
        random = np.random.default_rng(0)
        values = values[random.integers(0, values.size, _MAX_SIZE)]
    values = values.astype("float32")
    return values[np.isfinite(values)]
