"""What a tuning tried, and what it chose."""

import dataclasses
import json
from typing import Any

import rich.table

from keras_tfopt.plan import ExecutionPlan

_MIB = 2**20


@dataclasses.dataclass(frozen=True)
class TuningRow:
    """One optimization that was tried.

    Attributes:
        name: String.
        is_kept: Boolean. Whether it measured better and was kept.
        remark: String. Why it was kept or not.
        seconds: Float or `None`. Median wall time of a step.
        first_seconds: Float or `None`. The first step, with compiling.
        ratio: Float or `None`. Seconds by those of the best until then, which
            ran by turns with it.
        peak_bytes: Integer or `None`. What a step needs beyond what is in use.
        loss_difference: Float or `None`. Largest relative difference of the
            first losses to those of the baseline.
    """

    name: str
    is_kept: bool
    remark: str
    seconds: float | None = None
    first_seconds: float | None = None
    ratio: float | None = None
    peak_bytes: int | None = None
    loss_difference: float | None = None


@dataclasses.dataclass(frozen=True)
class TuningReport:
    """What was tried, in order, and what was chosen.

    Attributes:
        rows: Tuple of `TuningRow`.
        plan: `ExecutionPlan` that was chosen.
        policy: String or `None`. Dtype policy that was chosen.
        speedup: Float or `None`. How many times as fast as the baseline that
            is, measured by turns; `None` if nothing fits.
    """

    rows: tuple[TuningRow, ...]
    plan: ExecutionPlan
    policy: str | None
    speedup: float | None

    def sections(self) -> dict[str, dict[str, Any]]:
        """Returns the sections of a configuration that say what was chosen."""
        mode = "on" if self.plan.jit_compile else "off"
        sections: dict[str, dict[str, Any]] = {"compilation": {"mode": mode}}
        if self.plan.microbatch_size is not None:
            size = self.plan.microbatch_size
            sections["distribution"] = {"microbatch_size": size}
        memory: dict[str, Any] = {}
        if self.policy is not None:
            dtype = self.policy.removeprefix("mixed_")
            memory["mixed_precision"] = {"compute_dtype": dtype}
        if self.plan.remat is not None:
            memory["checkpoint_gradients"] = self.plan.remat
        if self.plan.offload is not None:
            memory["offload"] = list(self.plan.offload)
        return {**sections, "memory": memory} if memory else sections

    def to_json(self) -> str:
        """Returns everything as JSON."""
        return json.dumps(
            {
                "rows": [dataclasses.asdict(row) for row in self.rows],
                "chosen": self.sections(),
                "speedup": self.speedup,
            },
            indent=2,
        )

    def table(self) -> rich.table.Table:
        """Returns a table with one row for each optimization."""
        table = rich.table.Table()
        if self.speedup is not None:
            table.caption = f"chosen: {self.speedup:.2f} x the baseline's speed"
        table.add_column("tried")
        for heading in ("ms", "x best", "first s", "peak MiB", "loss differs"):
            table.add_column(heading, justify="right")
        table.add_column("")
        for row in self.rows:
            table.add_row(
                row.name,
                _cell(row.seconds, 1e3, ".2f"),
                _cell(row.ratio, 1, ".2f"),
                _cell(row.first_seconds, 1, ".1f"),
                _cell(row.peak_bytes, 1 / _MIB, ".1f"),
                _cell(row.loss_difference, 1, ".1e"),
                row.remark,
                style="" if row.is_kept else "dim",
            )
        return table


def _cell(value: float | None, factor: float, form: str) -> str:
    return "-" if value is None else format(value * factor, form)
