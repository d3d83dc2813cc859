import pytest
import tensorflow as tf

from keras_tfopt.data import advise_on_pipeline


def numbers():
    return tf.data.Dataset.range(8)


def increment(x):
    return x + 1


@pytest.mark.parametrize(
    ("dataset", "named"),
    [
        (numbers().cache().batch(2), "prefetch"),
        (numbers().cache().map(increment).prefetch(1), "num_parallel_calls"),
        (
            numbers()
            .cache()
            .map(increment, num_parallel_calls=2)
            .batch(2)
            .prefetch(1),
            "Batch before the map",
        ),
        (numbers().batch(2).prefetch(1), ".cache()"),
        (
            numbers()
            .interleave(lambda x: tf.data.Dataset.from_tensors(x))
            .cache()
            .prefetch(1),
            "Read files by interleave",
        ),
        (
            tf.data.Dataset.from_generator(
                lambda: iter(range(3)), output_signature=tf.TensorSpec(())
            ).prefetch(1),
            "write_records",
        ),
    ],
    ids=["prefetch", "map", "batch", "cache", "interleave", "generator"],
)
def test_names_what_is_missing(dataset, named):
    assert any(named in line for line in advise_on_pipeline(dataset))


def test_nothing_is_left_to_say():
    dataset = (
        numbers()
        .cache()
        .shuffle(8)
        .batch(2)
        .map(increment, num_parallel_calls=2)
        .prefetch(1)
    )
    assert advise_on_pipeline(dataset) == ()


def test_unknown_pipeline_gets_general_advice():
    (advice,) = advise_on_pipeline(None)
    assert "prefetch" in advice and "cache" in advice
