"""XLA: what it refuses, what compiling costs, and what it makes."""

from keras_tfopt.compilation.settings import (
    CompilationSettings as CompilationSettings,
)
from keras_tfopt.compilation.statistics import (
    CompilationStats as CompilationStats,
)
