"""Traces the memory of steps on an allocator that reports what it does.

Prints what was found as JSON.
"""

import collections
import json
import sys

import keras
import numpy as np
import tensorflow as tf

from keras_tfopt import AccumModel
from keras_tfopt import ExecutionPlan
from keras_tfopt import trace_memory
from keras_tfopt.memory import read_allocator_stats
from keras_tfopt.memory import reset_allocator_peak
from keras_tfopt.memory.memory_trace import UNKNOWN
from tests.equivalence import state_of

ROWS = 1024
UNITS = 96
BATCH = (np.ones((ROWS, 32), "float32"), np.zeros((ROWS, 1), "float32"))


def network(cls, **settings):
    """Returns a compiled model whose activations are larger than the rest."""
    inner = keras.Sequential(
        [
            keras.Input((UNITS,)),
            keras.layers.Dense(UNITS, name="deep"),
            keras.layers.BatchNormalization(name="norm"),
        ],
        name="inner",
    )
    inputs = keras.Input((32,))
    outputs = keras.layers.Dense(UNITS, name="first")(inputs)
    outputs = keras.layers.Dropout(0.5, name="drop")(inner(outputs))
    model = cls(inputs, keras.layers.Dense(1, name="head")(outputs), **settings)
    model.compile("adam", "mse", metrics=["mae"])
    model.evaluate(*BATCH, batch_size=ROWS, verbose=0)
    model.optimizer.build(model.trainable_variables)
    return model


def figures(model, plan=None):
    """Returns what a trace says, and what the allocator says besides."""
    before = state_of(model)
    reset_allocator_peak()
    trace = trace_memory(model, BATCH, plan)
    peak = read_allocator_stats().peak_bytes
    state = state_of(model)
    activations = collections.Counter()
    for entry in trace.entries:
        if entry.kind == "activations":
            activations[entry.layer] += entry.bytes
    return {
        "peak": trace.peak_bytes,
        "allocator_peak": peak,
        "sum": sum(entry.bytes for entry in trace.entries),
        "unattributed": trace.unattributed_ratio,
        # Of what the step itself allocates.
        "unnamed": sum(
            entry.bytes
            for entry in trace.entries
            if entry.layer == UNKNOWN and entry.begin is not None
        ),
        "activations": activations,
        "kinds": trace.by_kind(),
        "layers": trace.by_layer(),
        "is_same": before.keys() == state.keys()
        and all(np.array_equal(state[key], before[key]) for key in before),
        "commit": trace.commit_bytes,
        "text": str(trace),
        "located": sum(e.address is not None for e in trace.entries),
        "image": trace.image().shape,
        "weights": sum(4 * weight.size for weight in model.get_weights()),
    }


def main():
    """Prints the figures of some kinds of steps."""
    keras.utils.set_random_seed(0)
    model = network(keras.Model)
    found = {"whole": figures(model)}
    found["xla"] = figures(model, ExecutionPlan(jit_compile=True))
    found["split"] = figures(network(AccumModel, microbatch_size=ROWS // 4))
    tf.profiler.experimental.start(sys.argv[1])
    try:
        trace_memory(model, BATCH)
    except RuntimeError as error:
        found["busy"] = str(error)
    finally:
        tf.profiler.experimental.stop(save=False)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
