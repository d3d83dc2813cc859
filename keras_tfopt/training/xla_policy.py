"""Which steps XLA compiles, and what to do when it refuses one."""

from collections.abc import Hashable
import dataclasses
import logging
from typing import Any

import keras

from keras_tfopt import _compat
from keras_tfopt.compilation.ledger import CompilationLedger
from keras_tfopt.compilation.refusal import describe_refusal
from keras_tfopt.compilation.settings import CompilationSettings
from keras_tfopt.compilation.shapes import Shapes
from keras_tfopt.compilation.shapes import describe_shapes
from keras_tfopt.compilation.shapes import shapes_of
from keras_tfopt.plan import ExecutionPlan
from keras_tfopt.training.failure import Remedy
from keras_tfopt.training.failure import StepFailure
from keras_tfopt.training.failure import StepReport
from keras_tfopt.training.failure import is_out_of_memory

_logger = logging.getLogger("keras_tfopt")

# Two shapes are a batch and a short one; more of them are a pattern.
_MANY_SHAPES = 3


class XLAPolicy(Remedy):
    """Compiles the steps that shall be, and runs refused ones without XLA.

    A step that fails under XLA has left no trace. It runs again uncompiled: if
    that works, XLA was the reason, and stays off; if not, the error was the
    user's, and surfaces from the uncompiled step as it would have without XLA.

    Args:
        settings: `CompilationSettings`.
        work: String. What runs under the policy, for messages.
        jit_compile: Boolean. Whether XLA compiles without the policy.

    Attributes:
        ledger: `CompilationLedger` of the function.
    """

    def __init__(
        self, settings: CompilationSettings, work: str, jit_compile: bool
    ) -> None:
        self._settings = settings
        self._work = work
        self._layers: frozenset[str] = frozenset()
        self._wants_xla = settings.mode == "on"
        self._decided: bool | None = None
        self._jit_compile = jit_compile
        self._is_suspected = False
        self._unchecked_steps = 0
        self.ledger = CompilationLedger(settings)

    def switch(self, mode: str) -> None:
        """Decides for another mode, whatever failed before."""
        self._decided = mode == "on"
        self._is_suspected = False

    def resume(self, plan: ExecutionPlan) -> ExecutionPlan:
        """Returns the plan as decided before."""
        self._is_suspected = False
        if self._decided is None:
            return plan
        return dataclasses.replace(plan, jit_compile=self._decided)

    def withdraw(self, plan: ExecutionPlan) -> ExecutionPlan:
        """Returns the plan with XLA as `compile` asked for it."""
        return dataclasses.replace(plan, jit_compile=self._jit_compile)

    def prepare(
        self, model: keras.Model, batch: Any, plan: ExecutionPlan
    ) -> tuple[ExecutionPlan, str] | None:
        """Decides before the first batch."""
        layers = list(_compat.layers_of(model))
        self._layers = frozenset(layer.name for layer in layers)
        if self._decided is not None:
            return None
        obstacle = _obstacle(model, layers) if self._wants_xla else None
        self._decided = self._wants_xla and obstacle is None
        reason = obstacle or f"XLA is {self._settings.mode}"
        if obstacle and not plan.jit_compile:
            _logger.warning("%s runs without XLA: %s", self._work, obstacle)
        return dataclasses.replace(plan, jit_compile=self._decided), reason

    def adapt(self, plan: ExecutionPlan, batch: Any) -> ExecutionPlan:
        """Returns the plan without XLA for batches not worth compiling."""
        if not plan.jit_compile:
            return plan
        is_compiled = not self._is_check_due and self.ledger.admits(
            _split(plan), shapes_of(batch)
        )
        return dataclasses.replace(plan, jit_compile=is_compiled)

    def propose(self, failure: StepFailure) -> tuple[ExecutionPlan, str] | None:
        """Returns the plan without XLA if the step ran with it."""
        if not failure.tried[-1].jit_compile:
            is_other = not is_out_of_memory(failure.error)
            if self._is_suspected and is_other:
                # XLA was not the reason: the next run may use it again.
                self._is_suspected = False
                self._decided = True
            return None
        if is_out_of_memory(failure.error):
            return None
        self.ledger.note_failure()
        self._is_suspected = True
        self._decided = False
        refusal = describe_refusal(failure.error, self._layers)
        plan = dataclasses.replace(failure.plan, jit_compile=False)
        return plan, f"failed under XLA, {refusal}"

    def observe(self, report: StepReport) -> None:
        """Enters steps into the ledger and warns of many shapes."""
        is_compiled = (
            report.plan.jit_compile and report.function.compiled is not None
        )
        shapes = shapes_of(report.batch)
        self._is_suspected = False
        self._unchecked_steps += report.steps
        if not is_compiled:
            self._unchecked_steps = 0
        is_new = self.ledger.note_steps(
            _split(report.plan),
            shapes,
            is_compiled,
            report.steps,
            report.seconds,
        )
        if is_new:
            self._warn_of_shapes(shapes)

    @property
    def _is_check_due(self) -> bool:
        every = self._settings.check_every
        return every is not None and self._unchecked_steps >= every - 1

    def _warn_of_shapes(self, shapes: Shapes) -> None:
        count = len(self.ledger.shapes)
        if self.ledger.is_exhausted:
            _logger.warning(
                "%s compiled %d shapes in %.1f s, which is the limit: further "
                "shapes run without XLA.",
                self._work,
                count,
                self.ledger.compile_seconds,
            )
        elif count >= _MANY_SHAPES:
            seen = "; ".join(map(describe_shapes, self.ledger.shapes))
            _logger.warning(
                "%s compiled its shape number %d in %.1f s of compiling: %s. "
                "Batches of few lengths, or `max_shapes`, cost less. Shapes "
                "seen: %s",
                self._work,
                count,
                self.ledger.compile_seconds,
                describe_shapes(shapes),
                seen,
            )


def _split(plan: ExecutionPlan) -> Hashable:
    return plan.accumulation_steps, plan.microbatch_size


def _obstacle(
    model: keras.Model, layers: list[keras.layers.Layer]
) -> str | None:
    """Returns why a model cannot run under XLA, or `None`."""
    if model.run_eagerly:
        return "the model runs eagerly"
    if getattr(model, "gather_steps", 1) > 1:
        return "batches that `gather_steps` gathers may differ in shape"
    for layer in layers:
        if not layer.supports_jit:
            return f"layer '{layer.name}' declares that XLA cannot compile it"
    return None
