"""What was compiled for one function, and what may still be."""

from collections.abc import Hashable
import dataclasses

from keras_tfopt.compilation.fusion import FusionFigures
from keras_tfopt.compilation.settings import CompilationSettings
from keras_tfopt.compilation.shapes import Shapes
from keras_tfopt.compilation.shapes import is_shorter
from keras_tfopt.compilation.statistics import CompilationStats

_MAX_NOTED = 1000


@dataclasses.dataclass
class _Entry:
    """Time spent with one compiled shape."""

    first_seconds: float
    first_steps: int
    later_seconds: float = 0.0
    later_steps: int = 0

    @property
    def steps(self) -> int:
        """Steps that ran with the shape."""
        return self.first_steps + self.later_steps

    @property
    def compile_seconds(self) -> float:
        """What the first call took beyond what its steps take."""
        if not self.later_steps:
            return self.first_seconds
        step = self.later_seconds / self.later_steps
        return max(self.first_seconds - step * self.first_steps, 0.0)


class CompilationLedger:
    """Keeps the account of compilations of one function.

    TensorFlow does not say when XLA compiles. It does for each new shape, in
    the first call with it, so the account is kept of first calls.

    Args:
        settings: `CompilationSettings`.

    Attributes:
        fusion: `FusionFigures`, once somebody has looked, or `None`.
    """

    def __init__(self, settings: CompilationSettings) -> None:
        self._settings = settings
        # Splitting differently makes another function of the same shapes.
        self._entries: dict[tuple[Hashable, Shapes], _Entry] = {}
        self._failures = 0
        self._failed_seconds = 0.0
        self._seconds = 0.0
        self._steps = 0
        self._uncompiled: set[Shapes] = set()
        self.fusion: FusionFigures | None = None

    @property
    def shapes(self) -> list[Shapes]:
        """Shapes compiled for so far, oldest first."""
        return [shapes for _, shapes in list(self._entries)]

    @property
    def compile_seconds(self) -> float:
        """Time spent on compiling so far, with tracing."""
        return self._failed_seconds + sum(
            entry.compile_seconds for entry in list(self._entries.values())
        )

    @property
    def is_exhausted(self) -> bool:
        """Whether a limit forbids to compile for any further shape."""
        limit = self._settings.max_compile_seconds
        return len(self._entries) >= self._settings.max_shapes or (
            limit is not None and self.compile_seconds >= limit
        )

    @property
    def main(self) -> tuple[Hashable, Shapes] | None:
        """Split and shapes that most steps ran compiled with, if any did."""
        if not self._entries:
            return None
        return max(self._entries, key=lambda key: self._entries[key].steps)

    def is_known(self, split: Hashable, shapes: Shapes) -> bool:
        """Whether a shape was compiled for."""
        return (split, shapes) in self._entries

    def shapes_under(self, split: Hashable) -> list[Shapes]:
        """Returns the shapes compiled for, of batches split in one way."""
        return [shapes for how, shapes in self._entries if how == split]

    def admits(
        self, split: Hashable, shapes: Shapes, is_padded: bool = False
    ) -> bool:
        """Whether a batch shall run compiled.

        Args:
            split: How the batch is split.
            shapes: Its `Shapes`, with padding.
            is_padded: Boolean. Whether it is padded, to a shape that shall be
                compiled for. Defaults to `False`.
        """
        if self.is_known(split, shapes):
            return True
        if self.is_exhausted:
            return False
        if is_padded:
            return True
        others = self.shapes_under(split)
        if self._settings.on_new_shape != "compile" and others:
            return False
        return self._settings.compile_short_batches or not any(
            is_shorter(shapes, other) for other in others
        )

    def note_steps(
        self,
        split: Hashable,
        shapes: Shapes,
        is_compiled: bool,
        steps: int,
        seconds: float,
    ) -> bool:
        """Enters good steps into the account.

        Args:
            split: How the batches were split.
            shapes: Their `Shapes`.
            is_compiled: Boolean. Whether XLA compiled them.
            steps: Integer.
            seconds: Float. Wall time of all of them.

        Returns:
            Boolean. Whether this was the first call that was compiled for
            these shapes.
        """
        self._seconds += seconds
        if not is_compiled:
            # Ragged batches have endless shapes.
            if len(self._uncompiled) < _MAX_NOTED:
                self._uncompiled.add(shapes)
            return False
        self._steps += steps
        entry = self._entries.get((split, shapes))
        if entry is None:
            self._entries[split, shapes] = _Entry(seconds, steps)
            return True
        entry.later_seconds += seconds
        entry.later_steps += steps
        return False

    def note_failure(self, seconds: float) -> None:
        """Enters a compilation or a compiled run that failed."""
        self._failures += 1
        self._failed_seconds += seconds
        self._seconds += seconds

    def note_refused_padding(self, seconds: float) -> None:
        """Enters the time that it took to find padding unequal."""
        self._failed_seconds += seconds
        self._seconds += seconds

    def stats(self) -> CompilationStats:
        """Returns the account so far."""
        compiled = self.shapes
        return CompilationStats(
            successes=len(self._entries),
            failures=self._failures,
            compile_seconds=self.compile_seconds,
            training_seconds=self._seconds,
            compiled_steps=self._steps,
            compiled_shapes=tuple(compiled),
            uncompiled_shapes=tuple(self._uncompiled - set(compiled)),
            fusion=self.fusion,
        )
