"""What a `tf.data` pipeline does, and what would make it faster."""

import tensorflow as tf

from keras_tfopt import _compat_fit

_GENERAL = (
    "Let the last stage be prefetch(tf.data.AUTOTUNE), map in parallel with "
    "num_parallel_calls=tf.data.AUTOTUNE, cache what does not change, and "
    "batch before a map that works on whole batches."
)


def advise_on_pipeline(dataset: tf.data.Dataset | None) -> tuple[str, ...]:
    """Returns what would make a pipeline faster, the cheapest first.

    Example:

    ```python
    import tensorflow as tf
    from keras_tfopt.data import advise_on_pipeline

    slow = tf.data.Dataset.range(9).map(lambda number: number + 1).batch(3)
    assert "prefetch" in advise_on_pipeline(slow)[0]
    ```

    Args:
        dataset: `tf.data.Dataset`, or `None` where it is not known.

    Returns:
        Tuple of strings; empty where nothing is left to say.
    """
    if dataset is None:
        return (_GENERAL,)
    # From the end, where batches leave, to the source.
    stages = _compat_fit.dataset_stages(dataset)
    advice = []
    if "Prefetch" not in stages[:2]:
        advice.append(
            "End with .prefetch(tf.data.AUTOTUNE), so that the next batch is "
            "made while a step runs."
        )
    if "Map" in stages:
        advice.append(
            "Give map(..., num_parallel_calls=tf.data.AUTOTUNE), which keeps "
            "the order of the elements."
        )
    if "Interleave" in stages:
        advice.append(
            "Read files by interleave(..., num_parallel_calls="
            "tf.data.AUTOTUNE, deterministic=True)."
        )
    if "FlatMap" in stages:
        advice.append(
            "A Python generator, or files one after the other, keep one core "
            "busy: write the rows once with `keras_tfopt.data.write_records` "
            "and read those, or interleave the files."
        )
    if _maps_each_row(stages):
        advice.append(
            "Batch before the map, if its function can work on a whole batch "
            "at once."
        )
    if "Cache" not in stages:
        advice.append(
            "Put .cache() behind what is the same in each epoch, and before "
            "shuffling and augmentation, if it fits into memory."
        )
    return tuple(advice)


def _maps_each_row(stages: list[str]) -> bool:
    """Whether rows are mapped one by one and then batched."""
    batched = [
        place for place, stage in enumerate(stages) if stage.endswith("Batch")
    ]
    mapped = [
        place for place, stage in enumerate(stages) if stage.endswith("Map")
    ]
    return bool(batched and mapped) and max(mapped) > min(batched)
