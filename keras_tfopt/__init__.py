"""Exact gradient accumulation for Keras on TensorFlow."""

from typing import TYPE_CHECKING
from typing import Any

from keras_tfopt import callbacks as callbacks
from keras_tfopt import data as data
from keras_tfopt import distribution as distribution
from keras_tfopt._version import __version__ as __version__
from keras_tfopt.accumulation import ExactnessWarning as ExactnessWarning
from keras_tfopt.accumulation import register_row_state as register_row_state
from keras_tfopt.accumulation import remat as remat
from keras_tfopt.errors import InterruptedCommitError as InterruptedCommitError
from keras_tfopt.errors import OutOfMemoryError as OutOfMemoryError
from keras_tfopt.errors import TrainingDivergedError as TrainingDivergedError
from keras_tfopt.errors import WorkerLost as WorkerLost
from keras_tfopt.plan import ExecutionPlan as ExecutionPlan
from keras_tfopt.plan import PlanEvent as PlanEvent
from keras_tfopt.training import AccumMixin as AccumMixin
from keras_tfopt.training import AccumModel as AccumModel
from keras_tfopt.training import MemoryPlan as MemoryPlan
from keras_tfopt.training import TrainingInterrupted as TrainingInterrupted
from keras_tfopt.training import apply_remat as apply_remat
from keras_tfopt.training import plan_memory as plan_memory
from keras_tfopt.training import remove_remat as remove_remat
from keras_tfopt.training import trace_memory as trace_memory

if TYPE_CHECKING:
    from keras_tfopt.config import ConfigurationError as ConfigurationError
    from keras_tfopt.config import Optimization as Optimization


def __getattr__(name: str) -> Any:
    # Scripts without a configuration do not wait for its libraries.
    if name in ("ConfigurationError", "Optimization"):
        from keras_tfopt import config

        return getattr(config, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
