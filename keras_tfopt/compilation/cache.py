"""Keeping what XLA compiled for the next process."""

import os
import pathlib

from keras_tfopt.compilation.flags import add_flag


def persist_compilations(directory: str | os.PathLike) -> None:
    """Lets processes share what XLA compiles, in files of a directory.

    Saves compiling, not tracing. Call it before TensorFlow runs its first
    operation, in each process. TensorFlow prints an error about a text format
    for each file that it then reads all the same. What was compiled is for
    processors of one kind and for one version of TensorFlow: give each its own
    directory.

    Example:

    ```python
    from keras_tfopt.compilation import persist_compilations

    try:
        persist_compilations("xla_cache")
    except RuntimeError:
        print("TensorFlow runs already")
    ```

    Args:
        directory: Path. It is made if it does not exist.

    Raises:
        RuntimeError: If TensorFlow has started.
        OSError: If the directory cannot be made.

    Reference:
        `tf_xla_persistent_cache_directory` in
        https://github.com/tensorflow/tensorflow/blob/v2.21.0/tensorflow/compiler/jit/flags.cc
    """
    path = pathlib.Path(directory).absolute()
    add_flag(f"--tf_xla_persistent_cache_directory={path}")
    path.mkdir(parents=True, exist_ok=True)
