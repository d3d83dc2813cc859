"""Models whose steps run under a plan."""

from keras_tfopt.training.installation import guard_of as guard_of
from keras_tfopt.training.installation import guarded_step_of as guarded_step_of
from keras_tfopt.training.installation import release_guard as release_guard
from keras_tfopt.training.interruption import (
    TrainingInterrupted as TrainingInterrupted,
)
from keras_tfopt.training.memory_plan import MemoryPlan as MemoryPlan
from keras_tfopt.training.memory_plan import plan_memory as plan_memory
from keras_tfopt.training.memory_tracing import trace_memory as trace_memory
from keras_tfopt.training.mixin import AccumMixin as AccumMixin
from keras_tfopt.training.model import AccumModel as AccumModel
from keras_tfopt.training.remat import apply_remat as apply_remat
from keras_tfopt.training.remat import remove_remat as remove_remat
