"""The private names that placing variables needs still mean the same.

That variables are on their devices is tested in `distribution/sharded`, on
several of them.
"""

import keras
import tensorflow as tf

from keras_tfopt import _compat
from keras_tfopt import _compat_placement


def test_keras_makes_values_where_they_are_placed(monkeypatch):
    asked = []
    device = tf.device
    monkeypatch.setattr(
        tf, "device", lambda name: asked.append(name) or device(name)
    )
    with keras.StatelessScope():
        # Keras makes the value when the scope is over.
        variable = _compat_placement.PlacedVariable(
            "zeros", shape=(2,), device="CPU:0"
        )
        assert not asked
    assert asked == ["CPU:0"]
    assert isinstance(variable.value, tf.Variable)


def test_masks_are_removed():
    tensor = keras.layers.Embedding(3, 2, mask_zero=True)(tf.constant([[1, 0]]))
    assert _compat.get_mask(tensor) is not None
    _compat_placement.remove_mask(tensor)
    assert _compat.get_mask(tensor) is None
