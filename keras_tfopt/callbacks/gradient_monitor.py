"""Watching gradients and updates."""

import logging
import time
from typing import Any

import keras
import numpy as np

from keras_tfopt.plan import check_positive_integer
from keras_tfopt.telemetry.callback import TelemetryCallback
from keras_tfopt.telemetry.gradients import GradientFigures
from keras_tfopt.telemetry.records import Detail
from keras_tfopt.telemetry.records import EpochEnd
from keras_tfopt.telemetry.records import Reading
from keras_tfopt.telemetry.weight_drift import WeightDrift
from keras_tfopt.training import guarded_step_of
from keras_tfopt.training import release_guard
from keras_tfopt.training.gradient_look import GradientLook
from keras_tfopt.training.guarded_step import GuardedStep

_logger = logging.getLogger("keras_tfopt")


class GradientMonitor(TelemetryCallback):
    """Measures gradients and updates of every n-th step, per variable.

    It sees the gradient of the whole batch, accumulated over its micro-batches,
    unscaled, and before clipping. The figures are computed in the graph of the
    step and read by a thread: nothing waits for them. Gradients that vanish,
    units that are dead, and gradients that explode are told once in the log
    `keras_tfopt`, with the names of the variables.

    It works on any compiled Keras model without a `train_step` of its own. A
    step that is looked at holds the weights twice.

    | Metric | What |
    | --- | --- |
    | `gradient_norm` | norm of all gradients together |
    | `gradient_vanishing_ratio` | share of variables with almost none |
    | `gradient_dead_unit_ratio` | share of units with none in three looks |
    | `update_ratio` | norm of the update, relative to that of the weights |

    At the end of each epoch the thread compares the weights with those at which
    `fit` began, by the population stability index over their deciles: 0 for the
    same distribution; above 0.25 it has moved far, which fine-tuning seldom
    means to do. Variables of fewer than 100 values, or that began with equal
    ones, are left out.

    | Tag in `TensorBoardDashboard` | What |
    | --- | --- |
    | `optimizer/layer_gradient_norm/<layer>` | norm of the gradients |
    | `optimizer/layer_update_ratio/<layer>` | as `update_ratio` |
    | `optimizer/weight_drift/<path>` | stability index of the weights |

    Example:

    ```python
    import keras
    from keras_tfopt import callbacks

    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    monitor = callbacks.GradientMonitor(interval_steps=1)
    x, y = keras.ops.ones((16, 4)), keras.ops.ones((16, 1))
    model.fit(x, y, callbacks=[monitor], verbose=0)
    assert monitor.figures().gradient_norm > 0
    ```

    Args:
        interval_steps: Integer. Updates from one look to the next; a look
            takes about as long as an optimizer update. Defaults to 100.
        max_weight_drift: Float or `None`. Stability index above which a
            variable is told once in the log; `None` tells none. Defaults to
            0.25.

    Raises:
        ValueError: If a value is none of these; in `fit`, if the model has its
            own `train_step` or runs under a distribution strategy other than
            `MirroredStrategy`.

    Reference:
        Yurdakul, "Statistical Properties of Population Stability Index", 2018,
        https://scholarworks.wmich.edu/dissertations/3208
    """

    def __init__(
        self,
        interval_steps: int = 100,
        max_weight_drift: float | None = 0.25,
    ) -> None:
        super().__init__(interval_seconds=60.0)
        check_positive_integer("interval_steps", interval_steps)
        if interval_steps is None:
            raise ValueError(
                "Invalid value for argument `interval_steps`. Received: "
                "interval_steps=None. Expected: an integer of at least 1."
            )
        if max_weight_drift is not None and not max_weight_drift > 0:
            raise ValueError(
                "Invalid value for argument `max_weight_drift`. Received: "
                f"max_weight_drift={max_weight_drift!r}. Expected: a positive "
                "number, or None."
            )
        self.interval_steps = interval_steps
        self.max_weight_drift = max_weight_drift
        self._look: GradientLook | None = None
        self._watched: keras.Model | None = None
        self._looks = 0
        self._told: set[str] = set()
        self._usual_norm: float | None = None
        self._reference: WeightDrift | None = None
        self._drift: dict[str, float] = {}

    def figures(self) -> GradientFigures | None:
        """Returns what the last look saw, `None` before the first."""
        if self._look is None:
            return None
        looks, rows = self._look.read()
        return GradientFigures(self._look.names, rows) if looks else None

    def weight_drift(self) -> dict[str, float]:
        """Returns how far weights had moved at the last end of an epoch.

        Returns:
            Dict of population stability indices, by the path of the variable.
        """
        return dict(self._drift)

    def on_train_begin(self, logs: Any = None) -> None:
        """Joins the session, and looks at the steps of the model."""
        guard = guarded_step_of(self.model)
        # A model that is not built gets its variables with the first batch.
        if self.model.built:
            self._begin(guard)
        super().on_train_begin(logs)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Notes what a call did; looks at a model that is built only now."""
        if self._watched is not self.model:
            self._begin(guarded_step_of(self.model))
        super().on_train_batch_end(batch, logs)

    def on_train_end(self, logs: Any = None) -> None:
        """Leaves the session, and the steps of the model."""
        super().on_train_end(logs)
        self._watched = None
        if self._look is not None:
            guarded_step_of(self.model).remove_check(self._look)
            release_guard(self.model, "train")

    def metric_readings(self) -> list[Reading]:
        """Returns what the last look saw, for telemetry."""
        if self._look is None:
            return []
        looks, rows = self._look.read()
        figures = GradientFigures(self._look.names, rows)
        if looks > self._looks:
            self._looks = looks
            self._tell(figures)
            self._show(figures)
        return [] if not looks else figures.metric_readings()

    def handle(self, records: list[Any]) -> None:
        """Compares weights with those of the beginning, after an epoch."""
        ends = [record for record in records if isinstance(record, EpochEnd)]
        if not ends or self._reference is None:
            return
        self._drift = self._reference.measure()
        for path, value in self._drift.items():
            if self._session is not None:
                tag = f"optimizer/weight_drift/{path}"
                detail = Detail(ends[-1].time, ends[-1].updates, tag, value)
                self._session.put(detail)
        limit = self.max_weight_drift
        if limit is not None:
            far = [path for path, v in self._drift.items() if v > limit]
            self._tell_once(
                f"have moved far from where they began (above {limit:g})", far
            )

    def _begin(self, guard: GuardedStep) -> None:
        names = [v.path for v in self.model.trainable_variables]
        if self._look is None or self._look.names != names:
            self._look = GradientLook(self.model, self.interval_steps)
            self._looks = 0
        self._watched = self.model
        guard.add_check(self._look)
        self._reference = WeightDrift(self.model.trainable_variables)
        self._drift = {}

    def _show(self, figures: GradientFigures) -> None:
        """Hands the figures of layers to those who show them."""
        if self._session is None:
            return
        now, updates = time.time(), self._session.updates
        for tag, value in figures.details().items():
            if np.isfinite(value):
                self._session.put(Detail(now, updates, tag, value))

    def _tell(self, figures: GradientFigures) -> None:
        norm = figures.gradient_norm
        usual = self._usual_norm
        problems = {
            "get almost no gradient": figures.vanishing,
            "have dead units": figures.with_dead_units,
        }
        for problem, names in problems.items():
            self._tell_once(problem, names)
        if norm is None:
            return
        if usual is not None and norm > 10.0 * usual:
            _logger.warning(
                "The norm of the gradient is %.4g, after %.4g on average.",
                norm,
                usual,
            )
        self._usual_norm = norm if usual is None else 0.9 * usual + 0.1 * norm

    def _tell_once(self, problem: str, names: list[str]) -> None:
        new = [n for n in names if f"{problem} {n}" not in self._told]
        self._told.update(f"{problem} {name}" for name in new)
        if new:
            _logger.warning(
                "Step %d: %s %s.",
                0 if self._session is None else self._session.updates,
                ", ".join(new),
                problem,
            )
