"""Models whose steps run under a plan."""

from keras_tfopt.training.mixin import AccumMixin as AccumMixin
from keras_tfopt.training.model import AccumModel as AccumModel
