"""The maths of a step: from a batch to gradients, in micro-batches or whole."""

from keras_tfopt.accumulation.build import ExactnessWarning as ExactnessWarning
from keras_tfopt.accumulation.build import (
    UnsplittableError as UnsplittableError,
)
from keras_tfopt.accumulation.build import (
    build_padded_step as build_padded_step,
)
from keras_tfopt.accumulation.build import build_split_step as build_split_step
from keras_tfopt.accumulation.build import build_whole_step as build_whole_step
from keras_tfopt.accumulation.build import retrace as retrace
from keras_tfopt.accumulation.microstep import EVALUATION as EVALUATION
from keras_tfopt.accumulation.microstep import TRAINING as TRAINING
from keras_tfopt.accumulation.microstep import CheckSeries as CheckSeries
from keras_tfopt.accumulation.microstep import StepMode as StepMode
from keras_tfopt.accumulation.padded_step import PaddedStep as PaddedStep
from keras_tfopt.accumulation.padding import PaddingError as PaddingError
from keras_tfopt.accumulation.padding import (
    UndecidedPaddingError as UndecidedPaddingError,
)
from keras_tfopt.accumulation.pure_step import SplitStep as SplitStep
from keras_tfopt.accumulation.pure_step import StepResult as StepResult
from keras_tfopt.accumulation.pure_step import WholeStep as WholeStep
from keras_tfopt.accumulation.purity import Effects as Effects
from keras_tfopt.accumulation.remat import remat as remat
from keras_tfopt.accumulation.scope import BranchWriteError as BranchWriteError
from keras_tfopt.accumulation.state import (
    register_row_state as register_row_state,
)
