"""What a look at gradients means."""

import numpy as np

from keras_tfopt.telemetry.records import Reading

_VANISHING = 1e-7
_EPSILON = 1e-12


class GradientFigures:
    """Norms of gradients, weights and updates, by variable.

    Args:
        names: List of the paths of the variables.
        rows: Array with a row for each: norms of gradient and weights, the
            share of dead units, and the norm of the update.
    """

    def __init__(self, names: list[str], rows: np.ndarray) -> None:
        self._names = names
        self._gradients, self._weights, self._dead, self._updates = rows.T

    @property
    def gradient_norm(self) -> float | None:
        """Norm of all gradients together, `None` if it is not finite."""
        return _norm(self._gradients)

    @property
    def vanishing_ratio(self) -> float | None:
        """Share of the variables with almost no gradient."""
        has_gradient = np.isfinite(self._gradients)
        if not has_gradient.any():
            return None
        return len(self.vanishing) / int(has_gradient.sum())

    @property
    def vanishing(self) -> list[str]:
        """Variables whose gradient is next to nothing beside their weights."""
        # Comparisons with NaN are false.
        relative = self._gradients / (self._weights + _EPSILON)
        return self._selected(relative < _VANISHING)

    @property
    def with_dead_units(self) -> list[str]:
        """Variables of units that get no gradient."""
        return self._selected(self._dead > 0)

    @property
    def dead_unit_ratio(self) -> float | None:
        """Share of units without a gradient, a mean over the variables."""
        known = self._dead[np.isfinite(self._dead)]
        return float(known.mean()) if known.size else None

    @property
    def update_ratio(self) -> float | None:
        """Norm of the update, relative to that of all weights."""
        update, weights = _norm(self._updates), _norm(self._weights)
        return update / weights if update is not None and weights else None

    def metric_readings(self) -> list[Reading]:
        """Returns the values of metrics."""
        return [
            Reading("gradient_norm", self.gradient_norm),
            Reading("gradient_vanishing_ratio", self.vanishing_ratio),
            Reading("gradient_dead_unit_ratio", self.dead_unit_ratio),
            Reading("update_ratio", self.update_ratio),
        ]

    def details(self) -> dict[str, float]:
        """Returns norm and update ratio of each layer, by tag."""
        layers: dict[str, list[int]] = {}
        for index, name in enumerate(self._names):
            layers.setdefault(name.rpartition("/")[0] or name, []).append(index)
        found = {}
        for layer, indices in layers.items():
            gradient = _norm(self._gradients[indices])
            update = _norm(self._updates[indices])
            weights = _norm(self._weights[indices])
            if gradient is not None:
                found[f"optimizer/layer_gradient_norm/{layer}"] = gradient
            if update is not None and weights:
                found[f"optimizer/layer_update_ratio/{layer}"] = (
                    update / weights
                )
        return found

    def by_variable(self) -> dict[str, dict[str, float]]:
        """Returns the norms of each variable, by its path."""
        return {
            name: {
                "gradient_norm": float(self._gradients[index]),
                "weight_norm": float(self._weights[index]),
                "update_norm": float(self._updates[index]),
                "dead_unit_ratio": float(self._dead[index]),
            }
            for index, name in enumerate(self._names)
        }

    def _selected(self, mask: np.ndarray) -> list[str]:
        return [n for n, m in zip(self._names, mask, strict=True) if m]


def _norm(norms: np.ndarray) -> float | None:
    """Returns the norm of parts whose norms are given; NaN means no part."""
    known = norms[~np.isnan(norms)]
    norm = float(np.sqrt(np.sum(np.square(known, dtype=np.float64))))
    return norm if known.size and np.isfinite(norm) else None
