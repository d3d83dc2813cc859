"""What compiling cost, and how often it went well."""

import dataclasses

from keras_tfopt.compilation.fusion import FusionFigures
from keras_tfopt.compilation.shapes import Shapes


@dataclasses.dataclass(frozen=True)
class CompilationStats:
    """The account of XLA for one function.

    Attributes:
        successes: Integer. Compilations that went well, one per shape.
        failures: Integer. Compilations, or compiled runs, that failed.
        compile_seconds: Float. Time spent on compiling, with tracing: what the
            first call with a shape took beyond later ones, and what failed.
        training_seconds: Float. Time of all steps, with that.
        compiled_steps: Integer. Steps that ran compiled.
        compiled_shapes: Tuple of `Shapes`, oldest first.
        uncompiled_shapes: Tuple of `Shapes` that only ran uncompiled, the first
            thousand.
        fusion: `FusionFigures` of the shape that most steps ran with, or
            `None` before it was looked at.
    """

    successes: int = 0
    failures: int = 0
    compile_seconds: float = 0.0
    training_seconds: float = 0.0
    compiled_steps: int = 0
    compiled_shapes: tuple[Shapes, ...] = ()
    uncompiled_shapes: tuple[Shapes, ...] = ()
    fusion: FusionFigures | None = None

    @property
    def attempts(self) -> int:
        """Compilations that were tried."""
        return self.successes + self.failures

    @property
    def success_ratio(self) -> float | None:
        """Share of the attempts that went well; `None` without any."""
        return self.successes / self.attempts if self.attempts else None

    @property
    def compile_share(self) -> float | None:
        """Share of compiling in the time of all steps; `None` without any."""
        if not self.training_seconds:
            return None
        return self.compile_seconds / self.training_seconds
