"""Another number of micro-batches in later epochs."""

import dataclasses
from typing import Any

import keras

from keras_tfopt.plan import check_positive_integer
from keras_tfopt.training.checks import check_planned


class AccumulationScheduler(keras.callbacks.Callback):
    """Changes the number of micro-batches at the start of given epochs.

    The effective batch is what `fit` delivers and stays as it is; the schedule
    only changes how much of it is in memory at a time. Use it, for example,
    where sequences get longer from epoch to epoch. Without XLA a change costs
    no retracing. Each change is recorded in `model.plan_events`.

    Example:

    ```python
    import keras
    from keras_tfopt import AccumModel
    from keras_tfopt import callbacks

    inputs = keras.Input((4,))
    model = AccumModel(inputs, keras.layers.Dense(1)(inputs))
    model.compile("sgd", "mse")
    schedule = callbacks.AccumulationScheduler({1: 2, 3: 4})
    x, y = keras.ops.ones((16, 4)), keras.ops.ones((16, 1))
    model.fit(x, y, epochs=4, callbacks=[schedule], verbose=0)
    assert model.plan.accumulation_steps == 4
    ```

    Args:
        schedule: Dict of integers. Epoch, from 0, to the `accumulation_steps`
            from that epoch on.

    Raises:
        ValueError: If `schedule` is empty, an epoch is negative, or a number of
            steps is not a positive integer.
    """

    def __init__(self, schedule: dict[int, int]) -> None:
        super().__init__()
        if not isinstance(schedule, dict) or not schedule:
            raise ValueError(
                "Invalid value for argument `schedule`. "
                f"Received: schedule={schedule!r}. Expected: a dict of epochs "
                "to `accumulation_steps`, such as {0: 1, 10: 4}."
            )
        for epoch, steps in schedule.items():
            if not isinstance(epoch, int) or epoch < 0:
                raise ValueError(
                    "Invalid value for argument `schedule`. "
                    f"Received: the epoch {epoch!r}. Expected: an integer "
                    "that is not negative; the first epoch is 0."
                )
            check_positive_integer(f"schedule[{epoch}]", steps)
            if steps is None:
                raise ValueError(
                    "Invalid value for argument `schedule`. Received: "
                    f"schedule[{epoch}]=None. Expected: a positive integer; 1 "
                    "for no splitting."
                )
        self.schedule = dict(schedule)

    def on_train_begin(self, logs: Any = None) -> None:
        """Checks that the model has a plan to change.

        Raises:
            ValueError: If it has none.
        """
        check_planned(self, self.model)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Changes the plan where the schedule says so.

        A run that starts in a later epoch gets what was due before.
        """
        due = [start for start in self.schedule if start <= epoch]
        if not due:
            return
        plan = dataclasses.replace(
            self.model.plan,
            accumulation_steps=self.schedule[max(due)],
            microbatch_size=None,
        )
        self.model.change_plan(plan, f"accumulation schedule, epoch {epoch}")
