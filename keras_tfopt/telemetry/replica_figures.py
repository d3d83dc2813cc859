"""What the times of replicas mean."""

import dataclasses

import numpy as np

from keras_tfopt.telemetry.records import Reading


@dataclasses.dataclass(frozen=True)
class ReplicaFigures:
    """Means over some steps.

    Attributes:
        steps: Integer. How many.
        step_seconds: Float. What a step took on the devices.
        communication_seconds: Float. What adding up gradients took of it, once
            the slowest replica had its own.
        reduced_bytes: Float. Gradients that each replica gave.
        compute_seconds: Tuple of floats. What each replica took for its own
            gradients.
    """

    steps: int
    step_seconds: float
    communication_seconds: float
    reduced_bytes: float
    compute_seconds: tuple[float, ...]

    @classmethod
    def of(cls, sums: np.ndarray) -> "ReplicaFigures | None":
        """Returns the means of sums as `ReplicaClock` makes them.

        Args:
            sums: Array, or the difference of two.

        Returns:
            `ReplicaFigures`, or `None` for no steps.
        """
        steps = int(sums[0])
        if steps < 1:
            return None
        step, communication, size, *compute = (sums[1:] / steps).tolist()
        return cls(steps, step, communication, size, tuple(compute))

    @property
    def communication_time_ratio(self) -> float | None:
        """Share of adding up gradients in the time of a step."""
        if self.step_seconds <= 0:
            return None
        return min(self.communication_seconds / self.step_seconds, 1.0)

    @property
    def load_imbalance_ratio(self) -> float | None:
        """How much longer the slowest replica computes than the mean."""
        mean = sum(self.compute_seconds) / len(self.compute_seconds)
        return max(self.compute_seconds) / mean - 1.0 if mean > 0 else None

    @property
    def slowest(self) -> int:
        """Index of the replica that computes longest."""
        return self.compute_seconds.index(max(self.compute_seconds))

    def metric_readings(self) -> list[Reading]:
        """Returns the values of gauges."""
        return [
            Reading(
                "communication_time_ratio",
                self.communication_time_ratio,
                {"source": "step"},
            ),
            Reading("load_imbalance_ratio", self.load_imbalance_ratio),
            *(
                Reading(
                    "replica_compute_seconds", seconds, {"replica": str(index)}
                )
                for index, seconds in enumerate(self.compute_seconds)
            ),
        ]
