"""Where a training run is in its data, and how fast that comes."""

from keras_tfopt.data.pipeline import advise_on_pipeline as advise_on_pipeline
from keras_tfopt.data.records import read_records as read_records
from keras_tfopt.data.records import write_records as write_records
from keras_tfopt.data.tuning import TunedPipeline as TunedPipeline
from keras_tfopt.data.tuning import tune as tune
