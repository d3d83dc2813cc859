"""Trains on a logical CPU with another one in the place of the host.

Prints what was found as JSON.
"""

import collections
import dataclasses
import json
import sys

import keras
import numpy as np
import tensorflow as tf

# There is no public way to see what runs where.
from tensorflow.python.eager import context

from keras_tfopt import AccumModel
from keras_tfopt import ExecutionPlan
from keras_tfopt import OutOfMemoryError
from keras_tfopt import callbacks
from keras_tfopt import plan_memory
from keras_tfopt import trace_memory
from keras_tfopt.benchmark.host_share import divide_cpu
from keras_tfopt.benchmark.host_share import host_share
from keras_tfopt.training.failure import StepFailure
from keras_tfopt.training.memory_probe import Prober
from keras_tfopt.training.offload_remedy import OffloadRemedy
from keras_tfopt.training.placement import bytes_of
from keras_tfopt.training.placement import placement_of
from keras_tfopt.training.placement import slots_of
from tests import builders
from tests.equivalence import state_of

DEVICE = "CPU:1"
WIDTH = 32
RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(70, WIDTH)).astype("float32")
Y = RANDOM.normal(size=(70, 1)).astype("float32")
ALL = ("activations", "slots", "frozen_weights")
CASES = {
    "batch": {},
    "half precision": {"policy": "mixed_float16", "microbatch_size": 12},
    "eager": {"run_eagerly": True, "accumulation_steps": 2},
}


def network(policy="float32", run_eagerly=False, **settings):
    """Returns a model in which a layer between others is frozen."""
    keras.utils.set_random_seed(0)
    keras.config.set_dtype_policy(policy)
    outputs = inputs = keras.Input((WIDTH,))
    for index in range(3):
        layer = keras.layers.Dense(WIDTH, activation="tanh")
        outputs = layer(outputs)
        layer.trainable = index != 1
        outputs = keras.layers.BatchNormalization()(outputs)
        outputs = keras.layers.Dropout(0.3, seed=index)(outputs)
    outputs = keras.layers.Dense(1, dtype="float32")(outputs)
    model = AccumModel(inputs, outputs, **settings)
    model.compile("adam", "mse", run_eagerly=run_eagerly)
    return model


def fit(model, epochs=1):
    model.fit(X, Y, batch_size=32, epochs=epochs, shuffle=False, verbose=0)


def difference(model, other):
    """Returns the largest difference of two states that must be equal."""
    pairs = zip(state_of(model).values(), state_of(other).values(), strict=True)
    return max(
        float(np.abs(a.astype("float64") - b.astype("float64")).max())
        for a, b in pairs
    )


def comparisons():
    """Compares training with offload to training without, bit for bit."""
    found = {}
    for name, settings in CASES.items():
        kept = network(remat=2, **settings)
        moved = network(remat=2, offload=ALL, **settings)
        executed = [executed_by(model) for model in (kept, moved)]
        found[name] = {
            "difference": difference(kept, moved),
            "executed": executed,
            "updates": int(moved.optimizer.iterations),
        }
    return found


def moves():
    """Changes the plan between epochs, with evaluation beside it."""
    kept, moved = network(remat=2), network(remat=2)
    devices = []
    for offload in (None, ALL, None):
        plan = dataclasses.replace(moved.plan, offload=offload)
        moved.change_plan(plan, "test")
        for model in (kept, moved):
            fit(model)
        slots = moved.optimizer.variables
        devices.append(collections.Counter(map(device_of, slots)))
        losses = [m.evaluate(X, Y, verbose=0) for m in (kept, moved)]
        if losses[0] != losses[1]:
            raise AssertionError(losses)
    return {
        "difference": difference(kept, moved),
        "slots": devices,
        "moves": placement_of(moved).version,
    }


def device_of(variable):
    return variable.value.device.rpartition("device:")[-1]


def executed_by(model):
    """Trains, and returns what was executed where, and whether it waited."""
    context.context().enable_graph_collection()
    context.context().export_run_metadata()
    fit(model)
    metadata = context.context().export_run_metadata()
    context.context().disable_graph_collection()
    found = collections.Counter()
    for function in metadata.function_graphs:
        for graph in function.partition_graphs:
            for node in graph.node:
                found.update(described(node))
    return found


def described(node):
    """Yields names of a node that a test asks for."""
    device = node.device.rpartition("device:")[-1]
    waits = any(one.startswith("^") for one in node.input)
    if node.op == "DeepCopy":
        direction = node.name.rpartition("/")[-1].partition("_host")[0]
        yield f"{direction} host on {device} waits={waits}"
    elif node.op in ("Square", "AssignSubVariableOp"):
        yield f"{node.op} on {device}"
    elif node.op == "ReadVariableOp" and "/frozen/" in node.name:
        yield f"frozen on {device} waits={waits}"


def peaks(model, batch, plan):
    """Returns the peak of all memory, and of what is not kept on the host."""
    trace = trace_memory(model, batch, plan)
    share = host_share(trace)
    return {
        "all": trace.peak_bytes - trace.timeline.in_use_bytes[0],
        "device": share.device_bytes,
        "host": share.host_bytes,
    }


def memory():
    """Compares the peaks of plans."""
    keras.config.set_dtype_policy("float32")
    outputs = inputs = keras.Input((64,))
    for _ in range(8):
        outputs = keras.layers.Dense(64, activation="gelu")(outputs)
    model = AccumModel(inputs, keras.layers.Dense(1)(outputs))
    model.compile("sgd", "mse")
    batch = tf.random.normal((4096, 64)), tf.zeros((4096, 1))
    return {
        f"{size} {offload}": peaks(
            model,
            batch,
            ExecutionPlan(microbatch_size=size, remat=1, offload=offload),
        )
        for size in (None, 2048)
        for offload in (None, "activations")
    }


class Shortage:
    """Has room for a step whose plan leaves the slots to the host."""

    def __init__(self):
        self.recovery = callbacks.OOMRecovery(16, grow_after=None)

    def __call__(self, array):
        events = self.recovery.plan_events
        if not events or not events[-1].new.offloads("slots"):
            raise MemoryError("no room")


def recovery():
    """Runs out of memory until the host holds what it can."""

    def make(probe, **settings):
        keras.utils.set_random_seed(0)
        outputs = inputs = keras.Input((WIDTH,))
        outputs = keras.layers.Dense(WIDTH, activation="tanh")(outputs)
        outputs = keras.layers.Dropout(0.3, seed=1)(outputs)
        outputs = builders.Probe(probe)(outputs)
        outputs = keras.layers.Dense(WIDTH, activation="tanh")(outputs)
        outputs = keras.layers.Dense(1)(outputs)
        model = AccumModel(inputs, outputs, remat=1, **settings)
        model.compile("adam", "mse")
        return model

    short = Shortage()
    model = make(short)
    model.fit(
        X[:64],
        Y[:64],
        batch_size=32,
        shuffle=False,
        verbose=0,
        callbacks=[short.recovery],
    )
    expected = make(None, microbatch_size=16)
    expected.fit(X[:64], Y[:64], batch_size=32, shuffle=False, verbose=0)
    remedy = OffloadRemedy()
    remedy.prepare(model, None)
    failure = StepFailure(OutOfMemoryError(), ExecutionPlan(), 1, "", ())
    plan, reason = remedy.propose_for_slots(failure)
    return {
        "difference": difference(model, expected),
        "offloads": [e.new.offload for e in short.recovery.plan_events],
        "reasons": [e.reason for e in short.recovery.plan_events],
        "for_slots": [plan.offload, reason],
    }


def planner():
    """Plans for less memory than there is with the slots on the device."""
    # Slots that outweigh what probes scatter by.
    outputs = inputs = keras.Input((256,))
    for _ in range(3):
        outputs = keras.layers.Dense(256, activation="tanh")(outputs)
    model = AccumModel(inputs, keras.layers.Dense(1)(outputs))
    model.compile("adam", "mse")
    batch = tf.ones((2048, 256)), tf.ones((2048, 1))
    one_row = Prober(model, batch, "CPU:0").measure(1)
    slots = sum(map(bytes_of, slots_of(model)))
    limit = one_row.peak_bytes - slots // 4
    found = plan_memory(model, batch, limit_bytes=limit)
    return {"text": str(found), "offload": found.plan.offload}


def replicas():
    """Compares training on two replicas."""

    def train(**settings):
        strategy = tf.distribute.MirroredStrategy(
            ["CPU:0", DEVICE],
            cross_device_ops=tf.distribute.HierarchicalCopyAllReduce(),
        )
        with strategy.scope():
            model = network(**settings)
        model.train_on_batch(X, Y)
        return model.get_weights()

    kept = train(remat=2)
    moved = train(remat=2, offload="activations")
    return max(
        float(np.abs(a - b).max()) for a, b in zip(kept, moved, strict=True)
    )


def main():
    divide_cpu()
    found = {"replicas": replicas()}
    with tf.device(DEVICE):
        found["comparisons"] = comparisons()
        found["moves"] = moves()
        found["recovery"] = recovery()
        found["planner"] = planner()
        found["memory"] = memory()
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
