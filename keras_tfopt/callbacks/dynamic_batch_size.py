"""A larger effective batch while there is memory for it."""

import dataclasses
import math
from typing import Any

import keras

from keras_tfopt.memory import PeakWindow
from keras_tfopt.memory.limit import default_device
from keras_tfopt.memory.limit import device_limit_bytes
from keras_tfopt.plan import check_positive_integer
from keras_tfopt.training.checks import check_planned
from keras_tfopt.training.checks import check_splittable

LEARNING_RATE_RULES = ("none", "linear", "sqrt")


class DynamicBatchSize(keras.callbacks.Callback):
    """Doubles or halves the effective batch between epochs, by free memory.

    The effective batch is what one update is made of: `gather_steps` of the
    batches that `fit` delivers. It doubles after an epoch whose peak stayed
    below `grow_below` of the device's limit, and halves after one whose peak
    exceeded `shrink_above`. Unlike a micro-batch, this changes what is
    computed: fewer updates per epoch, each with less noise. Use it for runs
    that want the largest batch, with a rule for the learning rate; leave it
    where results must be comparable. Each change is recorded in
    `model.plan_events`.

    Callbacks that set the learning rate themselves need the rule `"none"`.

    Example:

    ```python
    import keras
    from keras_tfopt import AccumModel
    from keras_tfopt import callbacks
    from keras_tfopt.memory import read_allocator_stats

    inputs = keras.Input((4,))
    model = AccumModel(inputs, keras.layers.Dense(1)(inputs))
    model.compile(keras.optimizers.SGD(0.01), "mse")
    dynamic = callbacks.DynamicBatchSize(
        max_gather_steps=4, learning_rate_rule="linear", limit_bytes=2**33
    )
    x, y = keras.ops.ones((32, 4)), keras.ops.ones((32, 1))
    if read_allocator_stats() is not None:
        model.fit(x, y, 8, epochs=3, callbacks=[dynamic], verbose=0)
        assert model.gather_steps == 4
    ```

    Args:
        max_gather_steps: Integer. Most delivered batches in an update.
            Defaults to 8.
        min_gather_steps: Integer. Fewest delivered batches in an update.
            Defaults to 1.
        grow_below: Float in (0, 1). Share of the limit. Defaults to 0.5.
        shrink_above: Float in (0, 1], above `grow_below`. Share of the limit.
            Defaults to 0.9.
        learning_rate_rule: String. `"none"`; `"linear"`: in proportion to the
            effective batch; `"sqrt"`: in proportion to its square root.
            Defaults to `"none"`.
        limit_bytes: Integer. What the peak is a share of. Defaults to the
            device's limit.

    Raises:
        ValueError: If an argument is out of range.

    Reference:
        - [Goyal et al., 2017](https://arxiv.org/abs/1706.02677), for the
          linear rule.
        - [Krizhevsky, 2014](https://arxiv.org/abs/1404.5997), for the rule of
          the square root.
        - [Smith et al., 2018](https://arxiv.org/abs/1711.00489), on larger
          batches instead of smaller learning rates.
    """

    def __init__(
        self,
        max_gather_steps: int = 8,
        min_gather_steps: int = 1,
        grow_below: float = 0.5,
        shrink_above: float = 0.9,
        learning_rate_rule: str = "none",
        limit_bytes: int | None = None,
    ) -> None:
        super().__init__()
        _check_steps(min_gather_steps, max_gather_steps)
        check_positive_integer("limit_bytes", limit_bytes)
        if not 0 < grow_below < shrink_above <= 1:
            raise ValueError(
                "Invalid values for arguments `grow_below` and `shrink_above`. "
                f"Received: grow_below={grow_below!r}, "
                f"shrink_above={shrink_above!r}. Expected: shares of the "
                "limit, 0 < grow_below < shrink_above <= 1."
            )
        if learning_rate_rule not in LEARNING_RATE_RULES:
            raise ValueError(
                "Invalid value for argument `learning_rate_rule`. Received: "
                f"learning_rate_rule={learning_rate_rule!r}. Expected: one of "
                f"{LEARNING_RATE_RULES}."
            )
        self.max_gather_steps = max_gather_steps
        self.min_gather_steps = min_gather_steps
        self.grow_below = grow_below
        self.shrink_above = shrink_above
        self.learning_rate_rule = learning_rate_rule
        self.limit_bytes = limit_bytes

    def on_train_begin(self, logs: Any = None) -> None:
        """Checks what it needs before the first step.

        Raises:
            ValueError: If the model has no plan or cannot be split, if the
                device counts nothing or has no limit, or if the optimizer has
                no learning rate that could be changed.
        """
        check_planned(self, self.model)
        largest = dataclasses.replace(
            self.model.plan, gather_steps=self.max_gather_steps
        )
        check_splittable(self.model, largest)
        self._device = default_device()
        limit = self.limit_bytes or device_limit_bytes(self._device)
        self._window = PeakWindow(self._device)
        if self._window.read() is None or limit is None:
            raise ValueError(
                "`DynamicBatchSize` compares the allocator's peak with its "
                f"limit. Received: limit_bytes={self.limit_bytes} on "
                f"{self._device}, which does not have both. Expected: a GPU; "
                "on a CPU, `limit_bytes` and TF_CPU_ALLOCATOR_USE_BFC=true in "
                "the environment before TensorFlow starts."
            )
        self._limit = limit
        self._check_learning_rate()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Lets the peak start again."""
        self._window.restart()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Changes the effective batch where the peak says so."""
        reading = self._window.read()
        if reading is None:
            return
        utilization = reading.peak_bytes / self._limit
        old = self.model.gather_steps
        new = self._next_steps(old, utilization)
        if new == old:
            return
        plan = dataclasses.replace(self.model.plan, gather_steps=new)
        self.model.change_plan(
            plan,
            f"the peak of epoch {epoch} was {utilization:.0%} of the limit",
        )
        factor = learning_rate_factor(old, new, self.learning_rate_rule)
        if factor != 1:
            optimizer = self.model.optimizer
            optimizer.learning_rate = float(optimizer.learning_rate) * factor

    def _next_steps(self, steps: int, utilization: float) -> int:
        if utilization < self.grow_below:
            return max(steps, min(2 * steps, self.max_gather_steps))
        if utilization > self.shrink_above:
            return min(steps, max(steps // 2, self.min_gather_steps))
        return steps

    def _check_learning_rate(self) -> None:
        learning_rate = self.model.optimizer.learning_rate
        if self.learning_rate_rule == "none" or isinstance(
            learning_rate, keras.Variable
        ):
            return
        raise ValueError(
            "A learning rate that follows a schedule cannot be changed. "
            f"Received: learning_rate_rule={self.learning_rate_rule!r} with a "
            "schedule in the optimizer. Expected: learning_rate_rule='none', "
            "or a number for the optimizer's `learning_rate`."
        )


def learning_rate_factor(old: int, new: int, rule: str) -> float:
    """Returns what a change of the effective batch multiplies a rate with.

    Args:
        old: Integer. Effective batch before.
        new: Integer. Effective batch after.
        rule: String. One of `LEARNING_RATE_RULES`.
    """
    if rule == "none":
        return 1.0
    ratio = new / old
    return ratio if rule == "linear" else math.sqrt(ratio)


def _check_steps(smallest: int, largest: int) -> None:
    check_positive_integer("min_gather_steps", smallest)
    check_positive_integer("max_gather_steps", largest)
    if smallest is None or largest is None or smallest > largest:
        raise ValueError(
            "Invalid values for arguments `min_gather_steps` and "
            f"`max_gather_steps`. Received: min_gather_steps={smallest!r}, "
            f"max_gather_steps={largest!r}. Expected: two integers, the first "
            "not above the second."
        )
