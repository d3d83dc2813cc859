"""Training on several devices: which strategy, and what its replicas run."""

from keras_tfopt.distribution.choice import ChosenStrategy as ChosenStrategy
from keras_tfopt.distribution.choice import strategy as strategy
from keras_tfopt.distribution.cluster import ClusterConfig as ClusterConfig
from keras_tfopt.distribution.cluster import parse_tf_config as parse_tf_config
from keras_tfopt.distribution.dropout import (
    PerExampleDropout as PerExampleDropout,
)
from keras_tfopt.distribution.parameter_server import serve as serve
