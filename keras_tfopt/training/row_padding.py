"""Which batches are padded for XLA, and to how many rows."""

from keras_tfopt.accumulation import PaddingError
from keras_tfopt.accumulation import UndecidedPaddingError
from keras_tfopt.compilation.settings import CompilationSettings
from keras_tfopt.compilation.shapes import Shapes
from keras_tfopt.compilation.shapes import padded_rows
from keras_tfopt.compilation.shapes import rows_of
from keras_tfopt.plan import ExecutionPlan

# Steps until a batch is asked again, for the first time.
_PAUSE = 10


class RowPadding:
    """Chooses the rows that micro-batches are padded to.

    Args:
        settings: `CompilationSettings`.
    """

    def __init__(self, settings: CompilationSettings) -> None:
        self._buckets = settings.row_buckets
        self._is_wanted = settings.on_new_shape == "pad"
        self._pause = _PAUSE
        self._waiting = 0
        self.reset()

    def reset(self) -> None:
        """Forgets that padding was refused."""
        self.is_active = self._is_wanted
        self._pause = _PAUSE
        self._waiting = 0

    @property
    def is_paused(self) -> bool:
        """Whether some steps must run before a batch can tell more."""
        return self.is_active and self._waiting > 0

    def rows_for(
        self, plan: ExecutionPlan, shapes: Shapes, known: list[Shapes]
    ) -> int | None:
        """Returns the rows to pad to, or `None` not to pad.

        Args:
            plan: The `ExecutionPlan` in force.
            shapes: `Shapes` of the batch.
            known: `Shapes` that were compiled for under the plan.
        """
        rows = rows_of(shapes)
        if not self.is_active or not rows:
            return None
        rows = plan.rows_of_microbatch(rows)
        return padded_rows(rows, shapes, known, self._buckets)

    def forbid(self) -> None:
        """Pads never, whatever is forgotten."""
        self._is_wanted = self.is_active = False

    def refuse(self, error: PaddingError) -> str:
        """Pads no more, or not for some time, and returns that in words.

        Args:
            error: `PaddingError`.
        """
        if isinstance(error, UndecidedPaddingError):
            self._waiting, self._pause = self._pause, 10 * self._pause
            return f"rows are not padded for {self._waiting} steps: {error}"
        self.is_active = False
        return f"rows are not padded: {error}"

    def note_steps(self, steps: int) -> None:
        """Counts good steps."""
        self._waiting = max(self._waiting - steps, 0)
