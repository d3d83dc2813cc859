"""The private names of Keras and TensorFlow that restoring a `fit` needs.

The other half of `_compat`, under the same rules: each stands here once, with
the reason, and `tests/test_compat_fit.py` fails when one moves or changes its
meaning.
"""

from collections.abc import Callable
from collections.abc import Iterator
import inspect
import sys
import types
from typing import Any

import keras

# Where Keras keeps the seed generator that belongs to no layer.
from keras.src.backend.common import global_state

# Makes that generator, and knows its name.
from keras.src.random import seed_generator

# Tells arrays from other data.
from keras.src.trainers.data_adapters import array_data_adapter

# Tells datasets that the user made.
from keras.src.trainers.data_adapters import tf_dataset_adapter
import tensorflow as tf

# Holds the global seed and what draws from it.
from tensorflow.python.eager import context

# Tells whether the global generator exists without making it.
from tensorflow.python.ops import stateful_random_ops


def fit_locals() -> dict[str, Any]:
    """Returns the epoch iterator and the callbacks of the `fit` around us.

    Raises:
        RuntimeError: If there is none.
    """
    # Keras hands its callbacks neither, and calls them from this frame.
    for found in _locals_of_fits(sys._getframe()):
        return {name: found[name] for name in ("epoch_iterator", "callbacks")}
    raise RuntimeError(
        "This must be called inside of `fit`, by a callback. Received: no "
        "`fit` on the stack. Expected: `model.fit(..., callbacks=[...])`."
    )


def is_running(epoch_iterator: Any, frame: types.FrameType | None) -> bool:
    """Whether a frame is that of a `fit` over an epoch iterator, or in it."""
    # Nobody is told when an exception ends `fit`; the stack knows.
    return epoch_iterator is not None and any(
        found.get("epoch_iterator") is epoch_iterator
        for found in _locals_of_fits(frame)
    )


def _locals_of_fits(frame: types.FrameType | None) -> Iterator[dict[str, Any]]:
    """Yields the local variables of each `fit` on a stack, innermost first."""
    while frame is not None:
        if frame.f_code is _FIT.__code__:
            yield frame.f_locals
        frame = frame.f_back


# The function itself, out of the decorator that filters tracebacks.
_FIT = inspect.unwrap(keras.Model.fit)


def iterator_state(iterator: Any) -> bytes:
    """Returns the position of a `tf.data` iterator.

    Raises:
        tf.errors.FailedPreconditionError: If the dataset has state outside of
            the iterator; the message names the operation.
    """
    # `tf.train.Checkpoint` only knows how to write it to files of its own.
    state = iterator._serialize_to_tensors()["_STATE"]
    return tf.io.serialize_tensor(state).numpy()


def set_iterator_state(iterator: Any, state: bytes) -> None:
    """Puts a fresh `tf.data` iterator where another one was."""
    tensor = tf.io.parse_tensor(state, tf.variant)
    iterator._restore_from_tensors({"_STATE": tensor})


def shuffles_in(state: bytes) -> int:
    """Returns of how many shuffles an iterator's state holds the generator.

    A stage is gone from the state once its end was seen, which prefetching
    does before the last batch is asked for.
    """
    # Shuffles name it in the state, and nobody else tells what it holds.
    return state.count(b"epoch_num_random_samples")


def dataset_of(epoch_iterator: Any) -> Any:
    """Returns the dataset that `fit` iterates over."""
    # Keras adapts what the user gave; only this is what runs.
    return epoch_iterator._distributed_dataset


def shuffles_arrays(epoch_iterator: Any) -> bool:
    """Whether Keras shuffles the arrays that `fit` was given."""
    return is_array_data(epoch_iterator) and bool(
        epoch_iterator.data_adapter._shuffle
    )


def own_sharding(epoch_iterator: Any) -> str | None:
    """Returns how the user gives workers their parts, if TensorFlow does not.

    Returns:
        String in words; `None` if TensorFlow divides the data.
    """
    # Arrays and generators are divided by Keras and TensorFlow.
    adapter = epoch_iterator.data_adapter
    if not isinstance(adapter, tf_dataset_adapter.TFDatasetAdapter):
        return None
    dataset = adapter.get_tf_dataset()
    if not isinstance(dataset, tf.data.Dataset):
        return "a dataset that was distributed before"
    policy = dataset.options().experimental_distribute.auto_shard_policy
    if policy is not tf.data.experimental.AutoShardPolicy.OFF:
        return None
    return "a dataset with AutoShardPolicy.OFF"


def dataset_stages(dataset: Any) -> list[str]:
    """Returns the stages of a dataset, such as `"Cache"`, the last one first.

    Options are no stage.
    """
    # Datasets tell neither their kind nor their inputs in public.
    name = type(dataset).__name__.strip("_").removesuffix("Dataset")
    own = [] if name == "Options" else [name]
    return own + [
        stage for part in dataset._inputs() for stage in dataset_stages(part)
    ]


def symbolic_build(model: keras.Model, spec: Any) -> None:
    """Makes the variables of a model, its metrics and its loss, if need be."""
    # Without a batch: a call would draw seeds and move statistics.
    model._symbolic_build(data_batch=spec)


def set_initial_epoch(model: keras.Model, epoch: int | None) -> None:
    """Tells the `fit` that is about to begin its first epoch."""
    # Keras reads it once, after `on_train_begin`.
    model._initial_epoch = epoch


def global_seed() -> int | None:
    """Returns the seed of `tf.random.set_seed`, or `None`."""
    # It has no public reader.
    return context.global_seed()


def operation_seed_state() -> Any:
    """Returns the state of what gives operations seeds, `None` without one."""
    # What is traced or run eagerly after a restart draws from here.
    if context.global_seed() is None:
        return None
    return context.context()._rng.getstate()


def set_operation_seed_state(state: Any) -> None:
    """Puts back what gives operations their seeds."""
    if context.global_seed() is not None:
        context.context()._rng.setstate(state)


def global_seed_generator(create: bool = False) -> Any:
    """Returns the seed generator behind `keras.random`, `None` until used."""
    # It is in no list of variables.
    if create:
        return seed_generator.global_seed_generator()
    return global_state.get_global_attribute(
        seed_generator.GLOBAL_SEED_GENERATOR
    )


def global_generator(create: bool = False) -> Any:
    """Returns TensorFlow's global generator, `None` until used."""
    # The public function makes one, on a device.
    if create:
        return tf.random.get_global_generator()
    return stateful_random_ops.global_generator


def is_array_data(epoch_iterator: Any) -> bool:
    """Whether `fit` was given arrays."""
    # How batches are drawn, and by what randomness, depends on the adapter.
    return isinstance(
        epoch_iterator.data_adapter, array_data_adapter.ArrayDataAdapter
    )


def array_data(epoch_iterator: Any) -> tuple[Any, int, int, Any]:
    """Returns the arrays that `fit` was given, and how it goes through them.

    Returns:
        The nest of arrays, their rows, the batch size, and `shuffle`.
    """
    # Weights of classes are in the arrays by now; the adapter alone has them.
    adapter = epoch_iterator.data_adapter
    return (
        adapter._inputs,
        adapter._num_samples,
        adapter._batch_size,
        adapter._shuffle,
    )


def py_dataset(epoch_iterator: Any) -> keras.utils.PyDataset | None:
    """Returns the `PyDataset` that `fit` was given, or `None`."""
    # The adapter holds it, and wraps it into a Python generator.
    return getattr(epoch_iterator.data_adapter, "py_dataset", None)


def replace_iteration(
    epoch_iterator: Any, name: str, wrap: Callable[[Callable], Callable]
) -> None:
    """Wraps one of two methods by which `fit` goes through its data.

    Args:
        epoch_iterator: What `fit` iterates over in each epoch.
        name: String. `"enumerate"` for the generator of the steps of an epoch,
            `"iterate"` for the method that returns what to make an iterator of.
        wrap: Callable from the method to the one to put in its place.
    """
    # There is no hook between two steps that knows the iterator.
    name = {"enumerate": "_enumerate_iterator", "iterate": "_get_iterator"}[
        name
    ]
    setattr(epoch_iterator, name, wrap(getattr(epoch_iterator, name)))


def progress_of(epoch_iterator: Any) -> tuple[int | None, int]:
    """Returns the batches of an epoch, once known, and those seen so far."""
    # Learned in the first epoch where the length of the data is not known.
    return epoch_iterator._num_batches, epoch_iterator._steps_seen


def set_progress(
    epoch_iterator: Any, num_batches: int | None, steps_seen: int
) -> None:
    """Sets what `progress_of` returns."""
    epoch_iterator._num_batches = num_batches
    epoch_iterator._steps_seen = steps_seen


def progress_bar() -> Any:
    """Returns the callback that shows the progress of the `fit` around us.

    `None` if there is none.
    """
    for found in _locals_of_fits(sys._getframe()):
        # Where Keras puts one that nobody asked for.
        return found["callbacks"]._progbar
    return None


def width_of_bar(logger: Any) -> int:
    """Returns how many columns the progress bar took when it was last shown.

    Args:
        logger: `keras.callbacks.ProgbarLogger` or `None`.
    """
    # A bar that wraps moves what stands around it.
    return getattr(getattr(logger, "progbar", None), "_prev_total_width", 0)
