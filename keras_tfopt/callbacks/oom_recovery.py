"""Going on after an out-of-memory error, with the same effective batch."""

from typing import Any

import keras

from keras_tfopt import _compat
from keras_tfopt.distribution.replicas import spans_workers
from keras_tfopt.plan import PlanEvent
from keras_tfopt.plan import check_positive_integer
from keras_tfopt.training import guard_of
from keras_tfopt.training import release_guard
from keras_tfopt.training.checks import overridden_step
from keras_tfopt.training.guarded_step import GuardedStep
from keras_tfopt.training.memory_plan import PlanAhead
from keras_tfopt.training.microbatch_ladder import MicrobatchLadder
from keras_tfopt.training.offload_remedy import OffloadRemedy
from keras_tfopt.training.plan_control import PlanControl
from keras_tfopt.training.plan_control import events_of
from keras_tfopt.training.remat_remedy import RematRemedy


class OOMRecovery(keras.callbacks.Callback):
    """Halves the micro-batch when a step runs out of memory.

    The batch that failed has left no trace and runs again in smaller
    micro-batches, so that the effective batch, the optimizer's updates and what
    callbacks and schedules see stay those of a run with enough memory. After
    quiet steps the next larger micro-batch is tried, up to the one that the
    model was given; a size that failed is tried ever more rarely, since a
    failed allocation costs TensorFlow 10 to 20 seconds. Where not even the
    smallest micro-batch fits, its activations are computed again in the
    backward pass instead of kept (`remat`), from then on, if that saves a
    quarter of them; and where that does not help either, a device with memory
    of its own leaves to the host, one after another, what is kept for that,
    frozen weights, and the optimizer's slots (`offload`).

    It works on any compiled Keras model without a `train_step` of its own, also
    for validation, and for `evaluate` and `predict` when it is given to them. A
    model's own `train_step` cannot be split exactly; with `half_batches` its
    batches run in parts that are updates of their own.

    Each change is a `PlanEvent` and one line in the log `keras_tfopt`.

    Example:

    ```python
    import keras
    from keras_tfopt import callbacks

    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    recovery = callbacks.OOMRecovery(min_microbatch_size=2)
    x, y = keras.ops.ones((16, 4)), keras.ops.ones((16, 1))
    model.fit(x, y, callbacks=[recovery], verbose=0)
    assert recovery.plan_events == ()
    ```

    Args:
        min_microbatch_size: Integer. Smallest micro-batch to try. Defaults to
            1.
        grow_after: Integer or `None`. Steps without a failure after which the
            next larger micro-batch is tried; twice as many for each time that a
            size has failed. `None` never grows. Defaults to 100.
        plan_ahead: Boolean. Whether to find the micro-batch for the first batch
            by `plan_memory`, which takes some steps' time, instead of by
            failures. Needs a device whose allocator counts. Defaults to
            `False`.
        max_utilization: Float in (0, 1]. Share of the device's limit that
            `plan_ahead` may use. Defaults to 0.85.
        half_batches: Boolean. Whether a model with its own `train_step` goes
            on with halves of a batch. Each is a real update, so that the
            result is that of smaller batches. Defaults to `False`, which
            refuses such a model.
        remat: Boolean. Whether training, where it would end, goes on with
            rematerialization, and whether `plan_ahead` may choose it. The
            result is the same, and a step takes longer. Defaults to `True`.
        offload: Boolean. The same for what a GPU can leave to the memory of the
            host. Defaults to `True`.

    Raises:
        ValueError: If a number is not a positive integer.
    """

    def __init__(
        self,
        min_microbatch_size: int = 1,
        grow_after: int | None = 100,
        plan_ahead: bool = False,
        max_utilization: float = 0.85,
        half_batches: bool = False,
        remat: bool = True,
        offload: bool = True,
    ) -> None:
        super().__init__()
        check_positive_integer("min_microbatch_size", min_microbatch_size)
        check_positive_integer("grow_after", grow_after)
        if min_microbatch_size is None:
            raise ValueError(
                "Invalid value for argument `min_microbatch_size`. Received: "
                "min_microbatch_size=None. Expected: an integer of at least 1."
            )
        self.min_microbatch_size = min_microbatch_size
        self.grow_after = grow_after
        self.plan_ahead = plan_ahead
        self.half_batches = half_batches
        self.remat = remat
        self.offload = offload
        self._planner = PlanAhead(max_utilization, remat, offload)
        self._ladders: dict[str, MicrobatchLadder] = {}
        self._controls: dict[str, PlanControl] = {}
        self._restored: dict[str, Any] = {}

    @property
    def plan_events(self) -> tuple[PlanEvent, ...]:
        """Changes of plan of training, evaluation and prediction so far."""
        return events_of(self._controls.values())

    def get_state(self) -> dict[str, Any]:
        """Returns what a restored run must know."""
        return {
            role: ladder.get_state() for role, ladder in self._ladders.items()
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Puts back what `get_state` returned."""
        self._restored = dict(state)
        for role in self._ladders:
            self._restore(role)

    def on_train_begin(self, logs: Any = None) -> None:
        """Registers with the guarded step of the model."""
        self._register("train")

    def on_train_end(self, logs: Any = None) -> None:
        """Takes the registration back."""
        self._unregister("train")

    def on_test_begin(self, logs: Any = None) -> None:
        """Registers with the guarded evaluation step of the model."""
        self._register("test")

    def on_test_end(self, logs: Any = None) -> None:
        """Takes the registration back."""
        self._unregister("test")

    def on_predict_begin(self, logs: Any = None) -> None:
        """Registers with the guarded prediction of the model."""
        self._register("predict")

    def on_predict_end(self, logs: Any = None) -> None:
        """Takes the registration back."""
        self._unregister("predict")

    def _register(self, role: str) -> None:
        guard = guard_of(self.model, role, self.half_batches)
        control = guard.control
        if self._controls.get(role) is not control:
            self._controls[role] = control
            has_plan = self._has_plan(role, guard)
            self._ladders[role] = MicrobatchLadder(
                control.plan,
                self.min_microbatch_size,
                self.grow_after,
                RematRemedy() if self.remat and has_plan else None,
                OffloadRemedy() if self.offload and has_plan else None,
            )
            self._restore(role)
        control.register(self._ladders[role])
        if role == "train" and self.plan_ahead:
            self._check_plannable()
            control.register(self._planner)

    def _has_plan(self, role: str, guard: Any) -> bool:
        # Only training keeps activations, and a model's own step has no plan.
        # Workers trace parts of different rows.
        return (
            role == "train"
            and isinstance(guard, GuardedStep)
            and not spans_workers(_compat.strategy_of(self.model))
        )

    def _restore(self, role: str) -> None:
        # Validation registers long after a run is restored.
        if role in self._restored:
            self._ladders[role].set_state(self._restored.pop(role))

    def _check_plannable(self) -> None:
        overridden = overridden_step(self.model, "train")
        if overridden:
            raise ValueError(
                "Planning measures Keras' own step. Received: plan_ahead=True "
                f"for {type(self.model).__name__}.{overridden}. Expected: "
                "plan_ahead=False."
            )

    def _unregister(self, role: str) -> None:
        release_guard(self.model, role, self._ladders[role], self._planner)
