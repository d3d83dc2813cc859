"""Steps that would ruin a run, caught before they are written."""

import os
from typing import Any

import keras

from keras_tfopt.plan import check_positive_integer
from keras_tfopt.training import guard_of
from keras_tfopt.training import release_guard
from keras_tfopt.training.bad_steps import BadStepRemedy
from keras_tfopt.training.guarded_step import GuardedStep
from keras_tfopt.training.rollback import roll_back
from keras_tfopt.training.step_gate import StepGate


class NonFiniteRollback(keras.callbacks.Callback):
    """Keeps NaN, infinity and loss spikes out of the weights.

    The loss and the gradients of a step are looked at before anything of it is
    written, on the device. A bad batch is left out: weights, slots, statistics
    and metrics stay as if it had not been in the data. Where weights have gone
    bad before it shows, `policy="rollback"` also puts weights and optimizer of
    the last finite backup back, and goes on behind the bad batches. After too
    many bad batches training ends with `keras_tfopt.TrainingDivergedError`. All
    of them are listed in a file.

    It works on any compiled Keras model without a `train_step` of its own. With
    a `LossScaleOptimizer`, which leaves out infinite gradients by itself, only
    the loss is looked at. Gradients that spike often want to be clipped: set
    `global_clipnorm` of the optimizer to some times the norm of good steps,
    which the log names.

    Example:

    ```python
    import keras
    import numpy as np
    from keras_tfopt import callbacks

    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    x, y = np.ones((16, 4)), np.ones((16, 1))
    y[15] = np.nan
    guard = callbacks.NonFiniteRollback()
    model.fit(x, y, batch_size=4, shuffle=False, callbacks=[guard], verbose=0)
    assert int(model.optimizer.iterations) == 3
    assert guard.events[0]["batch"] == 3
    ```

    Args:
        policy: `"skip"` or `"rollback"`. Defaults to `"skip"`.
        backup_dir: String or path. Folder of the `BackupAndRestore` of this
            run, for `"rollback"`. Defaults to `None`.
        spike_factor: Float or `None`. Refuses a loss or gradient norm that is
            above the median of good steps by more than so many times their
            spread, such as 10. `None` refuses only what is not finite. Defaults
            to `None`.
        window: Integer. Good steps that a spike is judged by. Defaults to 100.
        warmup: Integer. Good steps before the first spike is looked for.
            Defaults to 20.
        max_bad_batches: Integer. Bad batches that are left out, until
            `forget_after` good steps in a row. Defaults to 3.
        forget_after: Integer. Defaults to 100.
        learning_rate_factor: Float in (0, 1]. What the learning rate is
            multiplied by at each rollback. Defaults to 1.
        report_path: String or path. JSON file for the bad batches. Defaults to
            `"bad_batches.json"`.

    Attributes:
        events: List of dicts, one for each bad batch: `epoch`, `batch` (the
            first one of an execution of several steps), `loss`,
            `gradient_norm`, their limits, and the `action` taken.

    Raises:
        ValueError: If an argument is none of these.
    """

    def __init__(
        self,
        policy: str = "skip",
        backup_dir: str | os.PathLike | None = None,
        *,
        spike_factor: float | None = None,
        window: int = 100,
        warmup: int = 20,
        max_bad_batches: int = 3,
        forget_after: int = 100,
        learning_rate_factor: float = 1.0,
        report_path: str | os.PathLike = "bad_batches.json",
    ) -> None:
        super().__init__()
        _check_policy(policy, backup_dir)
        numbers = {
            "window": window,
            "warmup": warmup,
            "max_bad_batches": max_bad_batches,
            "forget_after": forget_after,
        }
        for name, value in numbers.items():
            check_positive_integer(name, value)
        if spike_factor is not None and not spike_factor > 0:
            raise ValueError(
                "Invalid value for argument `spike_factor`. "
                f"Received: spike_factor={spike_factor!r}. Expected: a "
                "positive number, or None to let spikes pass."
            )
        if not 0 < learning_rate_factor <= 1:
            raise ValueError(
                "Invalid value for argument `learning_rate_factor`. Received: "
                f"learning_rate_factor={learning_rate_factor!r}. Expected: a "
                "number above 0 and at most 1."
            )
        self.policy = policy
        self.backup_dir = None if backup_dir is None else os.fspath(backup_dir)
        self.spike_factor = spike_factor
        self.learning_rate_factor = learning_rate_factor
        self._numbers = numbers
        self._report_path = os.fspath(report_path)
        self._gate: Any = None
        self._remedy: Any = None
        self._watched: keras.Model | None = None

    @property
    def events(self) -> list[dict[str, Any]]:
        """The bad batches so far."""
        return [] if self._remedy is None else self._remedy.events

    def on_train_begin(self, logs: Any = None) -> None:
        """Registers with the guarded step of the model."""
        if self._watched is not self.model:
            self._watched = self.model
            self._make_parts()
        guard = self._guard()
        guard.add_check(self._gate)
        guard.control.register(self._remedy)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Notes the epoch, for the report."""
        self._remedy.epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Notes the batch, for the report."""
        self._remedy.batch = batch

    def on_train_end(self, logs: Any = None) -> None:
        """Takes the registration back."""
        self._guard().remove_check(self._gate)
        release_guard(self.model, "train", self._remedy)

    def get_state(self) -> dict[str, Any]:
        """Returns what a restored run must know."""
        return self._remedy.get_state()

    def set_state(self, state: dict[str, Any]) -> None:
        """Puts back what `get_state` returned."""
        self._remedy.set_state(state)

    def _guard(self) -> GuardedStep:
        guard = guard_of(self.model)
        if not isinstance(guard, GuardedStep):
            raise TypeError(f"{type(guard).__name__} does not train.")
        return guard

    def _make_parts(self) -> None:
        numbers = self._numbers
        self._gate = StepGate(
            self.model, self.spike_factor, numbers["window"], numbers["warmup"]
        )
        self._remedy = BadStepRemedy(
            self._gate,
            numbers["max_bad_batches"],
            numbers["forget_after"],
            self._report_path,
            self._roll_back if self.policy == "rollback" else None,
        )

    def _roll_back(self) -> str:
        return roll_back(
            self.model, str(self.backup_dir), self.learning_rate_factor
        )


def _check_policy(policy: str, backup_dir: Any) -> None:
    if policy not in ("skip", "rollback"):
        raise ValueError(
            "Invalid value for argument `policy`. "
            f"Received: policy={policy!r}. Expected: 'skip' or 'rollback'."
        )
    if policy == "rollback" and not backup_dir:
        raise ValueError(
            "Invalid value for argument `backup_dir`. "
            f"Received: backup_dir={backup_dir!r} with policy='rollback'. "
            "Expected: the folder of the `BackupAndRestore` of this run."
        )
