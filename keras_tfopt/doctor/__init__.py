"""What a machine offers to a training, and what stands in its way."""

from keras_tfopt.doctor.examination import examine as examine
from keras_tfopt.doctor.finding import Finding as Finding
