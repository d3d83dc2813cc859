"""XLA: what it refuses, what compiling costs, and what it makes."""

from keras_tfopt.compilation.ahead_of_time import (
    compile_ahead_of_time as compile_ahead_of_time,
)
from keras_tfopt.compilation.cache import (
    persist_compilations as persist_compilations,
)
from keras_tfopt.compilation.clustering import (
    allow_clustering_on_cpu as allow_clustering_on_cpu,
)
from keras_tfopt.compilation.settings import (
    CompilationSettings as CompilationSettings,
)
from keras_tfopt.compilation.statistics import (
    CompilationStats as CompilationStats,
)
