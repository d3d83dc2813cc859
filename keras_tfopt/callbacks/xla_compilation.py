"""XLA in `fit`, where it works."""

from collections.abc import Sequence
import functools
import os
import pathlib
from typing import Any

import keras

from keras_tfopt.compilation import CompilationSettings
from keras_tfopt.compilation import CompilationStats
from keras_tfopt.compilation.inspection import CompiledFunction
from keras_tfopt.compilation.report import report_table
from keras_tfopt.compilation.settings import check_mode
from keras_tfopt.plan import PlanEvent
from keras_tfopt.telemetry.records import Reading
from keras_tfopt.training import guard_of
from keras_tfopt.training import release_guard
from keras_tfopt.training.checks import overridden_step
from keras_tfopt.training.plan_control import PlanControl
from keras_tfopt.training.plan_control import events_of
from keras_tfopt.training.xla_policy import XLAPolicy


class XLACompilation(keras.callbacks.Callback):
    """Compiles training steps with XLA, and goes on without it on failure.

    XLA compiles the pure part of a step only, which writes nothing. What it
    refuses, when it is traced, compiled or run, at the first batch or a later
    one, runs again on the same batch without it: nothing is lost, and the run
    continues without XLA. A step that fails without XLA as well raises the
    error that it raises there.

    XLA compiles once for each shape of a batch, which takes seconds. A batch
    that only has fewer rows than others, like the last one of an epoch, runs
    uncompiled, and so do new shapes beyond the limits. The numbers that XLA
    draws for dropout differ from those of TensorFlow.

    With `on_new_shape="pad"`, batches of different numbers of rows share what
    was compiled: a batch, or each of its micro-batches, gets more rows, which
    count in no loss, metric, regularizer or gradient. Before a function pads,
    it is run with and without padding on the first batch, and written is
    nothing; where any gradient or metric differs, as with layers or losses that
    mix rows, one warning names it, and new shapes run uncompiled. The same is
    done without a trial for layers whose training keeps statistics or draws
    numbers, such as `BatchNormalization` and `Dropout`, for ragged and sparse
    batches, and under a distribution strategy. A padded batch takes the time of
    a full one.

    It works on any compiled Keras model without a `train_step` of its own, for
    training, for validation and for `evaluate`. Each decision is a `PlanEvent`
    and one line in the log `keras_tfopt`.

    Example:

    ```python
    import keras
    from keras_tfopt import callbacks

    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    xla = callbacks.XLACompilation(max_shapes=4)
    x, y = keras.ops.ones((16, 4)), keras.ops.ones((16, 1))
    model.fit(x, y, batch_size=8, callbacks=[xla], verbose=0)
    assert xla.stats().successes == 1
    ```

    Args:
        mode: String. `"on"` compiles, `"off"` does not. `"auto"` measures some
            steps with XLA and some without, by turns, and keeps what is faster,
            or what fits; again when the plan changes. `"auto_clustering"` lets
            TensorFlow choose the parts of all graphs of the process that XLA
            compiles; nothing is known of those, and for CPUs the program must
            begin with `keras_tfopt.compilation.allow_clustering_on_cpu()`.
            Defaults to `"on"`.
        max_shapes: Integer. Most shapes to compile each function for. Defaults
            to 100.
        max_compile_seconds: Float or `None`. Most seconds to spend on
            compiling each function; `None` sets no limit. Defaults to 600.
        on_new_shape: String. `"compile"`; `"pad"` to pad the rows to a shape
            that was compiled for, if there is one; or `"fallback"` to compile
            for the first shape only and run others uncompiled. Defaults to
            `"compile"`.
        row_buckets: Sequence of integers or `None`. Numbers of rows, of a
            batch or of a micro-batch, that `"pad"` chooses from, such as
            `(16, 32, 64)`. Defaults to `None`: those that were compiled for, so
            that a batch of more rows than any before is compiled for.
        compile_short_batches: Boolean. Whether to compile also for a batch that
            differs from others by having fewer rows only. Defaults to `False`.
        check_every: Integer or `None`. Every how many steps one runs
            uncompiled: XLA drops assertions and `check_numerics`. Defaults to
            `None`, never.
        trial_steps: Integer. Fewest calls of each kind that `"auto"` measures;
            where the times of both overlap, up to four times as many. Defaults
            to 10.
        dump_dir: Path or `None`. Directory to write to, when training ends,
            what XLA made of each function for the shape that most steps ran
            with: HLO, StableHLO and a graph for Graphviz. Takes one more
            compilation for each file. Defaults to `None`.
        max_dump_bytes: Integer. What the files of one function may take.
            Defaults to 64 MiB.

    Raises:
        ValueError: If a value is none of these.

    Reference:
        What XLA refuses: https://openxla.org/xla/tf2xla/known_issues
    """

    def __init__(
        self,
        mode: str = "on",
        max_shapes: int = 100,
        max_compile_seconds: float | None = 600.0,
        on_new_shape: str = "compile",
        row_buckets: Sequence[int] | None = None,
        compile_short_batches: bool = False,
        check_every: int | None = None,
        trial_steps: int = 10,
        dump_dir: str | os.PathLike | None = None,
        max_dump_bytes: int = 2**26,
    ) -> None:
        super().__init__()
        self.settings = CompilationSettings(
            mode=mode,
            max_shapes=max_shapes,
            max_compile_seconds=max_compile_seconds,
            on_new_shape=on_new_shape,
            row_buckets=row_buckets,
            compile_short_batches=compile_short_batches,
            check_every=check_every,
            trial_steps=trial_steps,
            dump_dir=dump_dir,
            max_dump_bytes=max_dump_bytes,
        )
        self._policies: dict[str, XLAPolicy] = {}
        self._controls: dict[str, PlanControl] = {}

    @property
    def plan_events(self) -> tuple[PlanEvent, ...]:
        """Decisions about the plans of training and evaluation so far."""
        return events_of(self._controls.values())

    def stats(self, role: str = "train") -> CompilationStats:
        """Returns what compiling cost so far.

        Args:
            role: String. `"train"` or `"test"`. Defaults to `"train"`.

        Returns:
            `CompilationStats`.
        """
        if role not in self._policies:
            return CompilationStats()
        return self._policies[role].ledger.stats()

    def metric_readings(self) -> list[Reading]:
        """Returns the account of training, for telemetry."""
        stats = self.stats()
        found = [
            Reading(
                "xla_compilations_total", stats.successes, {"result": "success"}
            ),
            Reading(
                "xla_compilations_total", stats.failures, {"result": "fallback"}
            ),
            Reading("xla_compile_seconds_total", stats.compile_seconds),
            Reading("xla_compile_time_ratio", stats.compile_share),
            Reading("compiled_shapes", len(stats.compiled_shapes)),
        ]
        if stats.fusion is not None:
            fusion = stats.fusion
            found += [
                Reading("xla_fusions", fusion.fusions),
                Reading("xla_fused_ops", fusion.fused_operations),
                Reading("xla_fusion_saved_bytes", fusion.unmaterialized_bytes),
            ]
        return found

    def report(self) -> str:
        """Returns the account of XLA as a table, with what it fused.

        Compiles the main shape of each function once more, to look at it.
        """
        for policy in self._policies.values():
            if policy.ledger.fusion is None:
                policy.ledger.fusion = policy.inspect(CompiledFunction.fusion)
        return report_table({role: self.stats(role) for role in self._policies})

    def switch(self, mode: str) -> None:
        """Turns XLA on or off from the next step on, also inside of an epoch.

        Turning it on again forgets that it failed.

        Args:
            mode: String. As for the class.

        Raises:
            ValueError: If there is no such mode.
            RuntimeError: If TensorFlow was not started for auto-clustering.
        """
        check_mode(mode)
        for role, policy in self._policies.items():
            policy.switch(mode)
            control = self._controls[role]
            if policy in control.remedies:
                plan = policy.resume(control.plan)
                control.change(plan, f"XLA was switched {mode}")

    def on_train_begin(self, logs: Any = None) -> None:
        """Registers with the guarded step of the model.

        Raises:
            ValueError: If the model has a `train_step` of its own.
            RuntimeError: If TensorFlow was not started for auto-clustering.
        """
        self._register("train")

    def on_train_end(self, logs: Any = None) -> None:
        """Takes the registration back, and XLA with it, and writes dumps."""
        self._unregister("train")
        self._dump()

    def on_test_begin(self, logs: Any = None) -> None:
        """Registers with the guarded evaluation step of the model."""
        self._register("test")

    def on_test_end(self, logs: Any = None) -> None:
        """Takes the registration back, and XLA with it."""
        self._unregister("test")

    def _register(self, role: str) -> None:
        overridden = overridden_step(self.model, role)
        if overridden:
            raise ValueError(
                "XLA compiles the pure part of Keras' own step. Received: "
                f"{type(self.model).__name__}.{overridden}. Expected: a model "
                "that does not override it. Override `compute_loss`, "
                "`compute_metrics` or `call` instead, or compile the model "
                "with `jit_compile=True`."
            )
        control = guard_of(self.model, role).control
        if self._controls.get(role) is not control:
            self._controls[role] = control
            self._policies[role] = XLAPolicy(
                self.settings, control.work, control.plan.jit_compile
            )
        # Before others: it answers for XLA alone.
        control.register_first(self._policies[role])

    def _dump(self) -> None:
        if self.settings.dump_dir is None:
            return
        for role, policy in self._policies.items():
            policy.inspect(
                functools.partial(
                    CompiledFunction.dump,
                    directory=pathlib.Path(self.settings.dump_dir),
                    name=role,
                    max_bytes=self.settings.max_dump_bytes,
                )
            )

    def _unregister(self, role: str) -> None:
        release_guard(self.model, role, self._policies[role])
