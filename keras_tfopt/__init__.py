"""Exact gradient accumulation for Keras on TensorFlow."""

from keras_tfopt import callbacks as callbacks
from keras_tfopt._version import __version__ as __version__
from keras_tfopt.accumulation import ExactnessWarning as ExactnessWarning
from keras_tfopt.accumulation import register_row_state as register_row_state
from keras_tfopt.errors import InterruptedCommitError as InterruptedCommitError
from keras_tfopt.errors import OutOfMemoryError as OutOfMemoryError
from keras_tfopt.errors import TrainingDivergedError as TrainingDivergedError
from keras_tfopt.plan import ExecutionPlan as ExecutionPlan
from keras_tfopt.plan import PlanEvent as PlanEvent
from keras_tfopt.training import AccumMixin as AccumMixin
from keras_tfopt.training import AccumModel as AccumModel
from keras_tfopt.training import MemoryPlan as MemoryPlan
from keras_tfopt.training import TrainingInterrupted as TrainingInterrupted
from keras_tfopt.training import plan_memory as plan_memory
from keras_tfopt.training import trace_memory as trace_memory
