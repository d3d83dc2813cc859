"""Going back to a plan that was faster."""

import math
from typing import Any

import keras

from keras_tfopt.plan import PlanEvent
from keras_tfopt.plan import check_positive_integer
from keras_tfopt.training import guard_of
from keras_tfopt.training import release_guard
from keras_tfopt.training.plan_control import PlanControl
from keras_tfopt.training.plan_control import events_of
from keras_tfopt.training.stable_plan import StablePlan


class PlanRollback(keras.callbacks.Callback):
    """Takes a change of plan back when it makes training slower.

    Whatever changed the plan during training, a schedule, a trial, a recovery
    that grows again, or `model.change_plan`: its steps are timed on the same
    shapes of batches as before, and if they are slower, the plan before comes
    back. A plan that ran out of memory, or that XLA refused, does not. Each
    return is a `PlanEvent` and one line in the log `keras_tfopt`.

    It works on any compiled Keras model without a `train_step` of its own.

    Example:

    ```python
    import keras
    from keras_tfopt import AccumModel
    from keras_tfopt import callbacks

    inputs = keras.Input((4,))
    model = AccumModel(inputs, keras.layers.Dense(1)(inputs))
    model.compile("sgd", "mse")
    rollback = callbacks.PlanRollback(max_slowdown=1.5, steps=10)
    schedule = callbacks.AccumulationScheduler({1: 4})
    x, y = keras.ops.ones((64, 4)), keras.ops.ones((64, 1))
    added = [rollback, schedule]
    model.fit(x, y, batch_size=4, epochs=2, callbacks=added, verbose=0)
    ```

    Args:
        max_slowdown: Float of at least 1. Times of the plan before that a step
            may take. Defaults to 1.2.
        steps: Integer. Calls after which a plan is judged, by their median.
            Defaults to 20.

    Raises:
        ValueError: If a number is out of range.
    """

    def __init__(self, max_slowdown: float = 1.2, steps: int = 20) -> None:
        super().__init__()
        check_positive_integer("steps", steps)
        is_factor = isinstance(max_slowdown, (int, float)) and math.isfinite(
            max_slowdown
        )
        if steps is None or not is_factor or max_slowdown < 1:
            raise ValueError(
                "Invalid value for argument `max_slowdown` or `steps`. "
                f"Received: max_slowdown={max_slowdown!r}, steps={steps!r}. "
                "Expected: a finite factor of at least 1, and an integer."
            )
        self.max_slowdown = max_slowdown
        self.steps = steps
        self._control: PlanControl | None = None
        self._stable: StablePlan | None = None

    @property
    def plan_events(self) -> tuple[PlanEvent, ...]:
        """Changes of plan of training so far."""
        return events_of([self._control] if self._control else [])

    def on_train_begin(self, logs: Any = None) -> None:
        """Registers with the guarded step of the model."""
        self._control = guard_of(self.model).control
        self._stable = StablePlan(self.max_slowdown, self.steps)
        # Before those that answer a failure, so as to hear of it.
        self._control.register_first(self._stable)

    def on_train_end(self, logs: Any = None) -> None:
        """Takes the registration back."""
        if self._stable is not None:
            release_guard(self.model, "train", self._stable)
