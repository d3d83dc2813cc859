"""What steps need in memory, measured once in a process of its own."""

import json

from tests import subprocesses

_SOURCE = '''
import json

import keras
import tensorflow as tf

from keras_tfopt import AccumModel
from keras_tfopt import apply_remat
from keras_tfopt.memory import read_allocator_stats
from keras_tfopt.memory import reset_allocator_peak
from keras_tfopt.training.chained_updates import chained_updates

ROWS, MICROBATCHES, WIDTH, DEPTH, EVERY = 2048, 8, 64, 24, 5


def peak_of(function, *arguments):
    """Bytes above what was in use before; the least of some runs."""
    function(*arguments)
    peaks = []
    for _ in range(16):
        before = reset_allocator_peak().current_bytes
        function(*arguments)
        peaks.append(read_allocator_stats().peak_bytes - before)
    return min(peaks)


def perceptron(cls, depth=DEPTH, jit_compile=False, **settings):
    keras.utils.set_random_seed(0)
    outputs = inputs = keras.Input((WIDTH,))
    for _ in range(depth):
        outputs = keras.layers.Dense(WIDTH, activation="tanh")(outputs)
    model = cls(inputs, keras.layers.Dense(1)(outputs), **settings)
    model.compile("sgd", "mse", jit_compile=jit_compile)
    return model


def recomputed(*arguments, every=EVERY, **settings):
    model = perceptron(*arguments, **settings)
    apply_remat(model, every=every)
    return model


# XLA takes long to compile many layers.
SHORT = {"depth": DEPTH // 2, "jit_compile": True}


def lowest():
    model = perceptron(keras.Model)
    apply_remat(model, budget=0, batch=batch_of(ROWS))
    return model


def batch_of(rows):
    return tf.random.normal((rows, WIDTH)), tf.zeros((rows, 1))


def peak_of_step(model, rows):
    batch = batch_of(rows)

    def step():
        model.train_function(iter([batch]))

    model.make_train_function()
    return peak_of(step)


def peak_of_commit(optimizer, chained):
    shape = (512, 512)
    variables = [keras.Variable(tf.zeros(shape)) for _ in range(8)]
    gradients = [tf.ones(shape) for _ in variables]
    optimizer.build(variables)

    @tf.function(autograph=False)
    def apply(gradients):
        if not chained:
            optimizer.apply(gradients, variables)
            return
        with chained_updates(optimizer):
            optimizer.apply(gradients, variables)

    weights = sum(4 * 512 * 512 for _ in variables)
    return peak_of(apply, gradients) / weights


whole = ROWS * MICROBATCHES
adamw = keras.optimizers.AdamW
print(json.dumps({
    # First and from small to large: the one buffer of XLA may be given a larger
    # free block, and then counts as much.
    "remat_xla_microbatch": peak_of_step(
        recomputed(keras.Model, every=3, **SHORT), ROWS
    ),
    "xla_microbatch": peak_of_step(perceptron(keras.Model, **SHORT), ROWS),
    "remat_xla_batch": peak_of_step(
        recomputed(AccumModel, every=3, accumulation_steps=2, **SHORT),
        2 * ROWS,
    ),
    "xla_batch": peak_of_step(
        perceptron(AccumModel, accumulation_steps=2, **SHORT), 2 * ROWS
    ),
    "activations": 4 * ROWS * WIDTH * DEPTH,
    "stock_microbatch": peak_of_step(perceptron(keras.Model), ROWS),
    "stock_batch": peak_of_step(perceptron(keras.Model), whole),
    "split_batch": peak_of_step(
        perceptron(AccumModel, accumulation_steps=MICROBATCHES), whole
    ),
    "remat_microbatch": peak_of_step(recomputed(keras.Model), ROWS),
    "remat_batch": peak_of_step(
        recomputed(AccumModel, accumulation_steps=MICROBATCHES), whole
    ),
    "remat_lowest": peak_of_step(lowest(), ROWS),
    "commit": peak_of_commit(adamw(weight_decay=0.1), chained=False),
    "chained_commit": peak_of_commit(adamw(weight_decay=0.1), chained=True),
}))
'''


def measure() -> dict[str, float]:
    """Returns bytes of the peak of steps, and peaks of commits per weights."""
    printed = subprocesses.run_source(
        _SOURCE,
        TF_CPU_ALLOCATOR_USE_BFC="true",
        TF_CPU_BFC_MEM_LIMIT_IN_MB="2000",
        TF_CPP_MIN_LOG_LEVEL="3",
        # What runs side by side by chance would add to a peak.
        TF_NUM_INTEROP_THREADS="1",
    )
    return json.loads(printed.splitlines()[-1])
