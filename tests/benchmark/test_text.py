import numpy as np
import pytest
import tensorflow as tf

from keras_tfopt.benchmark import text


def test_each_character_is_followed_by_the_next():
    texts, following = text.load_sources(300)

    assert texts.shape == (300,)
    whole = b"".join(texts)
    assert all(len(line) == text.LENGTH for line in texts)
    codes = np.minimum(np.frombuffer(whole, np.uint8), text.CHARACTERS - 1)
    np.testing.assert_array_equal(following.ravel()[:-1], codes[1:])
    assert b"import" in whole


def test_more_sources_than_there_are():
    with pytest.raises(FileNotFoundError, match="characters of sources"):
        text.load_sources(10**6)


def test_bits():
    assert text.bits_without_context(np.array([0, 1, 2, 3])) == 2
    assert text.to_bits(np.log(8)) == pytest.approx(3)


def test_transformer_sees_what_came_before_alone():
    model = text.build_transformer()
    texts, following = text.load_sources(2)
    changed = tf.constant([texts[0], texts[0][:-1] + b"~"])

    first, second = model(changed).numpy()

    np.testing.assert_allclose(first[:-1], second[:-1], atol=1e-5)
    assert not np.allclose(first[-1], second[-1], atol=1e-5)
    data = tf.data.Dataset.from_tensors((texts, following))
    assert model.evaluate(data, verbose=0) > 0
