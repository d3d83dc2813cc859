"""XLA's auto-clustering: parts of graphs that TensorFlow finds compilable."""

import os

import tensorflow as tf

from keras_tfopt.compilation.flags import add_flag

_AUTO = "autoclustering"
_CPU_FLAG = "--tf_xla_cpu_global_jit"
# Beyond the end of what the probe gathers from.
_OUT_OF_RANGE = 9


def allow_clustering_on_cpu() -> None:
    """Lets TensorFlow cluster for CPUs once auto-clustering is on.

    For `callbacks.XLACompilation(mode="auto_clustering")`. Call it before
    TensorFlow runs its first operation; GPUs do not need it.

    Example:

    ```python
    from keras_tfopt.compilation import allow_clustering_on_cpu

    try:
        allow_clustering_on_cpu()
    except RuntimeError:
        print("TensorFlow runs already")
    ```

    Raises:
        RuntimeError: If TensorFlow has started without.
    """
    add_flag(_CPU_FLAG)


class AutoClustering:
    """Turns auto-clustering on and off for the process, also between steps.

    It holds for functions that are traced already, in both directions.
    TensorFlow clusters for GPUs at any time; for CPUs only if `TF_XLA_FLAGS`
    said so when it started its devices.
    """

    def __init__(self) -> None:
        self._before: str | None = None

    @property
    def is_on(self) -> bool:
        """Whether this turned auto-clustering on."""
        return self._before is not None

    def start(self) -> None:
        """Turns it on.

        Raises:
            RuntimeError: If TensorFlow does not cluster.
        """
        if self.is_on:
            return
        self._before = tf.config.optimizer.get_jit()
        tf.config.optimizer.set_jit(_AUTO)
        if not is_clustering():
            self.stop()
            flags = os.environ.get("TF_XLA_FLAGS")
            raise RuntimeError(
                "TensorFlow does not cluster on a CPU as it was started. "
                f"Received: TF_XLA_FLAGS={flags!r}, maybe set too late. "
                f"Expected: TF_XLA_FLAGS={_CPU_FLAG} in the environment before "
                "TensorFlow runs its first operation. Call "
                "`keras_tfopt.compilation.allow_clustering_on_cpu()` at the "
                "beginning of the program, or use `mode='auto'`."
            )

    def stop(self) -> None:
        """Gives back what was set before."""
        if self._before is not None:
            tf.config.optimizer.set_jit(self._before == _AUTO)
            self._before = None


@tf.function(autograph=False)
def _probe(x: tf.Tensor) -> tf.Tensor:
    """Returns 1 if the last element stands for what there is not."""
    for _ in range(4):
        x = tf.exp(x * 0.1)
    index = tf.cast(x[:1] * 0, tf.int32) + _OUT_OF_RANGE
    return tf.exp(tf.gather(x, index) - x[-1:])


def is_clustering() -> bool:
    """Whether XLA compiles parts of graphs, found by trying.

    Outside of XLA, an index out of range is an error or gives 0; XLA takes the
    last element instead.
    """
    try:
        return bool(_probe(tf.ones((4,)))[0] == 1)
    except tf.errors.InvalidArgumentError:
        return False
