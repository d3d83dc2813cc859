"""Which steps XLA compiles, and what to do when it refuses one."""

from collections.abc import Callable
from collections.abc import Hashable
import dataclasses
import logging
from typing import Any

import keras
import tensorflow as tf

from keras_tfopt import _compat
from keras_tfopt.accumulation import PaddingError
from keras_tfopt.compilation.checks import dropped_checks
from keras_tfopt.compilation.clustering import AutoClustering
from keras_tfopt.compilation.inspection import CompiledFunction
from keras_tfopt.compilation.ledger import CompilationLedger
from keras_tfopt.compilation.refusal import describe_refusal
from keras_tfopt.compilation.settings import CompilationSettings
from keras_tfopt.compilation.shapes import Shapes
from keras_tfopt.compilation.shapes import describe_shapes
from keras_tfopt.compilation.shapes import shapes_of
from keras_tfopt.compilation.shapes import with_rows
from keras_tfopt.distribution.replicas import is_synchronous
from keras_tfopt.errors import is_out_of_memory
from keras_tfopt.plan import ExecutionPlan
from keras_tfopt.training.batch import fix_rows
from keras_tfopt.training.batch import spec_of
from keras_tfopt.training.failure import Remedy
from keras_tfopt.training.failure import StepFailure
from keras_tfopt.training.failure import StepReport
from keras_tfopt.training.row_padding import RowPadding
from keras_tfopt.training.xla_trial import XLATrial

_logger = logging.getLogger("keras_tfopt")

# Two shapes are a batch and a short one; more of them are a pattern.
_MANY_SHAPES = 3
_MANY_CHECKS = 5


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
        self._jit_compile = jit_compile
        self._mode = settings.mode
        self._layers: frozenset[str] | None = None
        self._obstacle: str | None = None
        # Plans without regard to XLA. Another split is another function.
        self._refused: set[ExecutionPlan] = set()
        self._is_suspected = False
        self._trial: XLATrial | None = None
        self._trial_plan: ExecutionPlan | None = None
        self._decisions: dict[ExecutionPlan, bool] = {}
        self._unchecked_steps = 0
        self._clustering = AutoClustering()
        self._padding = RowPadding(settings)
        self._compiled: dict[tuple[Hashable, Shapes], CompiledFunction] = {}
        self.ledger = CompilationLedger(settings)

    @property
    def decides_alike(self) -> bool:
        """Whether it does without measuring how long steps take."""
        return self._mode != "auto"

    def switch(self, mode: str) -> None:
        """Changes the mode, whatever failed or was measured before."""
        self._mode = mode
        self._is_suspected = False
        self._refused = set()
        self._trial = self._trial_plan = None
        self._decisions = {}
        self._padding.reset()

    def resume(self, plan: ExecutionPlan) -> ExecutionPlan:
        """Returns the plan as decided before, and starts to cluster."""
        self._is_suspected = False
        if self._mode == "auto_clustering" and plan not in self._refused:
            self._clustering.start()
        else:
            self._clustering.stop()
        wanted = None if self._layers is None else self._decision(plan)
        return plan if wanted is None else _with_xla(plan, wanted)

    def withdraw(self, plan: ExecutionPlan) -> ExecutionPlan:
        """Returns the plan with XLA as `compile` asked for it."""
        self._clustering.stop()
        return _with_xla(plan, self._jit_compile)

    def prepare(
        self, model: keras.Model, batch: Any, plan: ExecutionPlan
    ) -> tuple[ExecutionPlan, str] | None:
        """Decides before the first batch, where there is nothing to measure."""
        if self._layers is not None:
            return None
        layers = list(_compat.layers_of(model))
        self._layers = frozenset(layer.name for layer in layers)
        self._obstacle = _obstacle(model, layers)
        reason = self._obstacle
        if plan.streams:
            reason = "XLA has no operation that offloads from its device"
        if plan.gathers:
            reason = "batches that `gather_steps` gathers may differ in shape"
        if reason and self._mode != "off":
            _logger.warning("%s runs without XLA: %s", self._work, reason)
        if self._padding.is_active and is_synchronous(
            _compat.strategy_of(model)
        ):
            self._padding.forbid()
            _logger.warning(
                "%s: rows are not padded: each replica has rows of its own",
                self._work,
            )
        wanted = self._decision(plan)
        if wanted is None:
            return None
        return _with_xla(plan, wanted), reason or f"XLA is {self._mode}"

    def adapt(self, plan: ExecutionPlan, batch: Any) -> ExecutionPlan:
        """Returns the plan with XLA for the batches that it is good for."""
        shapes = shapes_of(batch)
        wanted = plan.jit_compile and not plan.gathers
        if self._mode == "auto":
            measured = self._decision(plan)
            if measured is None:
                measured = self._trial_of(plan).wants_xla(shapes)
            wanted = measured
        plain = _with_xla(plan, False)
        compiled = _with_xla(plan, wanted)
        is_paused = self._is_check_due or self._padding.is_paused
        if not compiled.jit_compile or is_paused:
            return plain
        compiled = self._padded(compiled, shapes)
        rows = compiled.padded_rows
        if rows is not None:
            shapes = with_rows(shapes, rows)
        if self.ledger.admits(_split(compiled), shapes, rows is not None):
            return compiled
        return plain

    def _padded(self, plan: ExecutionPlan, shapes: Shapes) -> ExecutionPlan:
        """Returns a plan with the padding of a batch, where it has some."""
        known = self.ledger.shapes_under(_split(plan, is_padded=True))
        rows = self._padding.rows_for(plan, shapes, known)
        return dataclasses.replace(plan, padded_rows=rows)

    def propose(self, failure: StepFailure) -> tuple[ExecutionPlan, str] | None:
        """Returns the plan without XLA if the step ran with it."""
        is_memory = is_out_of_memory(failure.error)
        if isinstance(failure.error, PaddingError):
            self.ledger.note_refused_padding(failure.seconds)
            return failure.plan, self._padding.refuse(failure.error)
        plan = _with_xla(failure.plan, False)
        if self._clustering.is_on and not is_memory:
            self._clustering.stop()
            return plan, self._refuse(failure, "auto-clustering")
        if not failure.tried[-1].jit_compile:
            if self._is_suspected and not is_memory:
                # XLA was not the reason: the next run may use it again.
                self._is_suspected = False
                self._refused.discard(plan)
            return None
        if is_memory:
            if self._trial is None or not self._trial.has_run_plain:
                return None
            self._end_trial(False)
            return plan, "out of memory with XLA, which the step does without"
        self._trial = self._trial_plan = None
        return plan, self._refuse(failure, "XLA")

    def observe(self, report: StepReport) -> None:
        """Enters steps into ledger and trial, and warns of many shapes."""
        is_compiled = (
            report.plan.jit_compile and report.function.compiled is not None
        )
        own_shapes = shapes = shapes_of(report.batch)
        rows = report.plan.padded_rows
        if rows is not None:
            shapes = with_rows(shapes, rows)
        self._padding.note_steps(report.steps)
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
            if not self._compiled and self._settings.check_every is None:
                self._warn_of_checks(report.function.graph)
            spec = spec_of(report.batch)
            self._compiled[_split(report.plan), shapes] = CompiledFunction(
                report.function.compiled,
                spec if rows is None else fix_rows(spec, rows),
            )
            self._warn_of_shapes(shapes)
        if self._trial is not None:
            # Trials are of batches of one size, padded or not.
            self._trial.note(report, own_shapes)

    def review(
        self, plan: ExecutionPlan, rows: int | None, shape_key: str, steps: int
    ) -> tuple[ExecutionPlan, str] | None:
        """Returns the plan that a trial found to be faster."""
        if self._trial is not None and self._trial.is_complete:
            wanted, reason = self._trial.decide()
            self._end_trial(wanted)
            return _with_xla(plan, wanted), reason
        measured = self._decision(plan)
        if measured in (None, plan.jit_compile) or self._mode != "auto":
            return None
        return _with_xla(plan, measured), "as measured before under this plan"

    def inspect(self, look: Callable[[CompiledFunction], Any]) -> Any:
        """Looks at the function that most steps ran compiled with.

        Args:
            look: Callable of a `CompiledFunction`.

        Returns:
            What it returned; `None` if it failed or nothing was compiled.
        """
        main = self.ledger.main
        if main is None:
            return None
        try:
            return look(self._compiled[main])
        except Exception as error:
            _logger.warning(
                "What XLA made for %s cannot be looked at: %s",
                self._work,
                str(error).partition("\n")[0],
            )
            return None

    def _refuse(self, failure: StepFailure, compiler: str) -> str:
        """Notes a failure under a plan, and returns it in words."""
        self.ledger.note_failure(failure.seconds)
        self._is_suspected = True
        self._refused.add(_with_xla(failure.plan, False))
        refusal = describe_refusal(failure.error, self._layers or ())
        return f"failed under {compiler}, {refusal}"

    def _decision(self, plan: ExecutionPlan) -> bool | None:
        """Whether to use XLA under a plan; `None` if it is to be measured."""
        is_refused = _with_xla(plan, False) in self._refused
        if self._obstacle or is_refused or plan.gathers or plan.streams:
            return False
        if self._mode == "auto":
            return self._decisions.get(_with_xla(plan, False))
        return self._mode == "on"

    def _trial_of(self, plan: ExecutionPlan) -> XLATrial:
        """Returns the trial under a plan; another plan needs another trial."""
        plain = _with_xla(plan, False)
        if self._trial is None or self._trial_plan != plain:
            self._trial = XLATrial(self._settings.trial_steps)
            self._trial_plan = plain
        return self._trial

    def _end_trial(self, wanted: bool) -> None:
        if self._trial_plan is not None:
            self._decisions[self._trial_plan] = wanted
        self._trial = self._trial_plan = None

    @property
    def _is_check_due(self) -> bool:
        every = self._settings.check_every
        return every is not None and self._unchecked_steps >= every - 1

    def _warn_of_checks(self, graph: tf.Graph) -> None:
        checks = dropped_checks(graph, self._layers or ())
        if checks:
            _logger.warning(
                "XLA does not check values: %s will not fail. `check_every=n` "
                "runs every n-th step without XLA.",
                ", ".join(checks[:_MANY_CHECKS]),
            )

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


def _with_xla(plan: ExecutionPlan, jit_compile: bool) -> ExecutionPlan:
    return plan.compiled(jit_compile)


def _split(plan: ExecutionPlan, is_padded: bool | None = None) -> Hashable:
    if is_padded is None:
        is_padded = plan.padded_rows is not None
    split = plan.accumulation_steps, plan.microbatch_size
    return *split, plan.remat, plan.offload, is_padded


def _obstacle(
    model: keras.Model, layers: list[keras.layers.Layer]
) -> str | None:
    """Returns why a model cannot run under XLA, or `None`."""
    if model.run_eagerly:
        return "the model runs eagerly"
    for layer in layers:
        if not layer.supports_jit:
            return f"layer '{layer.name}' declares that XLA cannot compile it"
    return None
