"""What becomes of batches whose losses or gradients are not sound."""

from collections.abc import Callable
import json
import logging
import math
import os
from typing import Any

from keras_tfopt.errors import TrainingDivergedError
from keras_tfopt.plan import ExecutionPlan
from keras_tfopt.training.failure import Remedy
from keras_tfopt.training.failure import StepFailure
from keras_tfopt.training.step_gate import REFUSAL
from keras_tfopt.training.step_gate import StepGate

_logger = logging.getLogger("keras_tfopt")


class BadStepRemedy(Remedy):
    """Leaves out the batches that a gate refuses, up to a number of them.

    Args:
        gate: `StepGate`.
        max_bad_batches: Integer. Refused batches that are left out, until
            `forget_after` good steps in a row.
        forget_after: Integer.
        report_path: String. File for the list of the refused batches.
        roll_back: Callable that puts earlier weights back and says what it did,
            or `None`.

    Attributes:
        events: List of dicts, one for each refused batch.
        epoch: Integer. Epoch that is trained.
        batch: Integer. First batch of the execution under way.
    """

    def __init__(
        self,
        gate: StepGate,
        max_bad_batches: int,
        forget_after: int,
        report_path: str,
        roll_back: Callable[[], str] | None,
    ) -> None:
        self._gate = gate
        self._max_bad_batches = max_bad_batches
        self._forget_after = forget_after
        self._report_path = report_path
        self._roll_back = roll_back
        self._strikes = 0
        self._good_steps = 0
        self.events: list[dict[str, Any]] = []
        self.epoch = self.batch = 0

    def drop(self, failure: StepFailure) -> bool:
        """Leaves out a batch that the gate refused.

        Raises:
            TrainingDivergedError: If there were too many.
        """
        if REFUSAL not in str(failure.error):
            return False
        self._strikes += 1
        self._good_steps = 0
        is_last = self._strikes > self._max_bad_batches
        action = "training ends" if is_last else "the batch is left out"
        if self._roll_back is not None and not is_last:
            action += f", {self._roll_back()}"
        event = self._note(action)
        if is_last:
            raise TrainingDivergedError(
                f"Training diverged. Received: {self._strikes} bad batches "
                f"without {self._forget_after} good steps in between, the last "
                f"one with {_describe(event)}. Expected: at most "
                f"{self._max_bad_batches}. They are listed in "
                f"{self._report_path}. Look at these batches, lower the "
                "learning rate, or clip gradients with `global_clipnorm`."
            ) from failure.error
        _logger.warning(
            "Epoch %d, batch %d: %s; %s.%s",
            self.epoch,
            self.batch,
            _describe(event),
            action,
            self._advice(event),
        )
        return True

    def review(
        self, plan: ExecutionPlan, rows: int | None, shape_key: str, steps: int
    ) -> None:
        """Counts good steps."""
        self._good_steps += steps
        if self._good_steps >= self._forget_after:
            self._strikes = 0

    def get_state(self) -> dict[str, Any]:
        """Returns what a restart must not forget."""
        return {
            "strikes": self._strikes,
            "good_steps": self._good_steps,
            "events": self.events,
            "history": self._gate.history.numpy(),
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Puts back what `get_state` returned."""
        self._strikes = state["strikes"]
        self._good_steps = state["good_steps"]
        self.events = state["events"]
        self._gate.history.assign(state["history"])

    def _note(self, action: str) -> dict[str, Any]:
        (loss, norm), (loss_limit, norm_limit) = self._gate.last.numpy()
        event = {
            "epoch": self.epoch,
            "batch": self.batch,
            "loss": _number(loss),
            "loss_limit": _number(loss_limit),
            "gradient_norm": _number(norm),
            "gradient_norm_limit": _number(norm_limit),
            "action": action,
        }
        self.events.append(event)
        # Workers of one training write the same.
        temporary = f"{self._report_path}.{os.getpid()}.tmp"
        try:
            with open(temporary, "w", encoding="utf-8") as file:
                json.dump(self.events, file, indent=1)
            os.replace(temporary, self._report_path)
        except OSError as error:
            _logger.warning("%s is not written: %s.", self._report_path, error)
        return event

    def _advice(self, event: dict[str, Any]) -> str:
        norms = self._gate.history.numpy()[1]
        good = sorted(norm for norm in norms if norm > 0)
        is_spike = event["gradient_norm"] != 0 and len(good) > 0
        if not is_spike:
            return ""
        return (
            " Good steps have a gradient norm of about "
            f"{good[len(good) // 2]:.3g}; `global_clipnorm` of some times that "
            "would bound such steps."
        )


def _describe(event: dict[str, Any]) -> str:
    return (
        f"loss {event['loss']} (limit {event['loss_limit']}), gradient norm "
        f"{event['gradient_norm']} (limit {event['gradient_norm_limit']})"
    )


def _number(value: Any) -> float | str:
    """Returns a number that any reader of JSON takes."""
    value = float(f"{float(value):.6g}")
    return value if math.isfinite(value) else str(value)
