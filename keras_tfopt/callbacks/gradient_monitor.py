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
from keras_tfopt.telemetry.records import Reading
from keras_tfopt.training import guard_of
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

    `TensorBoardDashboard` also shows norm and update ratio of each layer.

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

    Raises:
        ValueError: If it is none; in `fit`, if the model has its own
            `train_step` or runs under a distribution strategy other than
            `MirroredStrategy`.
    """

    def __init__(self, interval_steps: int = 100) -> None:
        super().__init__(interval_seconds=60.0)
        check_positive_integer("interval_steps", interval_steps)
        if interval_steps is None:
            raise ValueError(
                "Invalid value for argument `interval_steps`. Received: "
                "interval_steps=None. Expected: an integer of at least 1."
            )
        self.interval_steps = interval_steps
        self._look: GradientLook | None = None
        self._watched: keras.Model | None = None
        self._looks = 0
        self._told: set[str] = set()
        self._usual_norm: float | None = None

    def figures(self) -> GradientFigures | None:
        """Returns what the last look saw, `None` before the first."""
        if self._look is None:
            return None
        looks, rows = self._look.read()
        return GradientFigures(self._look.names, rows) if looks else None

    def on_train_begin(self, logs: Any = None) -> None:
        """Joins the session, and looks at the steps of the model."""
        guard = _guard(self.model)
        # A model that is not built gets its variables with the first batch.
        if self.model.built:
            self._begin(guard)
        super().on_train_begin(logs)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Notes what a call did; looks at a model that is built only now."""
        if self._watched is not self.model:
            self._begin(_guard(self.model))
        super().on_train_batch_end(batch, logs)

    def on_train_end(self, logs: Any = None) -> None:
        """Leaves the session, and the steps of the model."""
        super().on_train_end(logs)
        self._watched = None
        if self._look is not None:
            _guard(self.model).remove_check(self._look)
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

    def _begin(self, guard: GuardedStep) -> None:
        names = [v.path for v in self.model.trainable_variables]
        if self._look is None or self._look.names != names:
            self._look = GradientLook(self.model, self.interval_steps)
            self._looks = 0
        self._watched = self.model
        guard.add_check(self._look)

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
            new = [n for n in names if f"{problem} {n}" not in self._told]
            self._told.update(f"{problem} {name}" for name in new)
            if new:
                _logger.warning(
                    "Step %d: %s %s.",
                    0 if self._session is None else self._session.updates,
                    ", ".join(new),
                    problem,
                )
        if norm is None:
            return
        if usual is not None and norm > 10.0 * usual:
            _logger.warning(
                "The norm of the gradient is %.4g, after %.4g on average.",
                norm,
                usual,
            )
        self._usual_norm = norm if usual is None else 0.9 * usual + 0.1 * norm


def _guard(model: keras.Model) -> GuardedStep:
    guard = guard_of(model)
    if not isinstance(guard, GuardedStep):
        raise TypeError(f"{type(guard).__name__} does not train.")
    return guard
