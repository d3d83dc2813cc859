"""One file that says how a training shall run."""

from keras_tfopt.config.errors import ConfigurationError as ConfigurationError
from keras_tfopt.config.optimization import Optimization as Optimization
