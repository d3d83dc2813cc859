"""Running a step for the sake of what it allocates."""

from collections.abc import Callable
from collections.abc import Iterator
import contextlib
import gc
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_tfopt import _compat
from keras_tfopt.accumulation import TRAINING
from keras_tfopt.accumulation import BranchWriteError
from keras_tfopt.accumulation import SplitStep
from keras_tfopt.accumulation import WholeStep
from keras_tfopt.accumulation import build_whole_step
from keras_tfopt.accumulation.purity import Effects
from keras_tfopt.memory.allocation_trace import Allocation
from keras_tfopt.memory.allocation_trace import Timeline
from keras_tfopt.memory.allocation_trace import timeline_of
from keras_tfopt.memory.attribution import LOOP
from keras_tfopt.memory.attribution import Attribution
from keras_tfopt.memory.attribution import short_operation
from keras_tfopt.memory.limit import default_device
from keras_tfopt.memory.memory_trace import UNKNOWN
from keras_tfopt.memory.memory_trace import MemoryEntry
from keras_tfopt.memory.memory_trace import MemoryTrace
from keras_tfopt.memory.memory_trace import sort_entries
from keras_tfopt.memory.profiler_window import ProfilerWindow
from keras_tfopt.plan import ExecutionPlan
from keras_tfopt.training.batch import spec_of
from keras_tfopt.training.batch import static_rows
from keras_tfopt.training.batch import to_tensors
from keras_tfopt.training.checks import is_manageable
from keras_tfopt.training.commit import CommitLog
from keras_tfopt.training.commit import awaited
from keras_tfopt.training.memory_probe import update_bytes
from keras_tfopt.training.step_function import as_compiled
from keras_tfopt.training.step_function import as_function
from keras_tfopt.training.step_function import partition_function
from keras_tfopt.training.step_function import pure_split_function
from keras_tfopt.training.step_function import split_number
from keras_tfopt.training.step_function import split_step

# The first run also allocates what stays for the next.
_WARM_UP = 1
# Blocks of the allocator. A block that is found free is only split where it is
# twice as large as what was asked for.
_BLOCK = 256
_OLDER = "older than the step, and rounding of blocks"


def trace_memory(
    model: keras.Model, batch: Any, plan: ExecutionPlan | None = None
) -> MemoryTrace:
    """Finds out what is alive at the peak of a step, by layer and tensor.

    The pure part of a step is traced and run: forward and backward pass and the
    sum over micro-batches, but not the optimizer's update, so that nothing is
    changed. Operations are named by the layer that they belong to; what cannot
    be attributed is shown as such.

    A buffer is that of the operation that allocated it. Others may write into
    it later: an activation function often has none of its own.

    Example:

    ```python
    import keras
    from keras_tfopt import trace_memory
    from keras_tfopt.memory import read_fragmentation

    inputs = keras.Input((8,))
    model = keras.Model(inputs, keras.layers.Dense(1, name="head")(inputs))
    model.compile("adam", "mse")
    batch = keras.ops.ones((64, 8)), keras.ops.ones((64, 1))
    if read_fragmentation() is not None:
        print(trace_memory(model, batch))
    ```

    Args:
        model: A compiled Keras model.
        batch: Nest `(x, y)` or `(x, y, sample_weight)`, as `fit` gets it.
        plan: `ExecutionPlan`. How the step runs. Defaults to the plan in force,
            or to the model's `jit_compile` where it has none.

    Returns:
        `MemoryTrace`; print it for a table.

    Raises:
        ValueError: If the device's allocator reports nothing, as a CPU without
            `TF_CPU_ALLOCATOR_USE_BFC=true`; or if the model's step is not
            Keras' own.
        RuntimeError: If another profiler session runs.
    """
    _check(model)
    if plan is None:
        plan = getattr(
            model, "plan", ExecutionPlan(jit_compile=bool(model.jit_compile))
        )
    device = default_device()
    batch = _owned(to_tensors(batch))
    attribution = Attribution(model)
    with attribution.marked():
        step, run, effects = _make_run(model, batch, plan)
        with _put_back(effects):
            for _ in range(_WARM_UP):
                run()
            # Dead models would count as something that is needed.
            gc.collect()
            with ProfilerWindow() as window:
                run()
    if not window.is_recorded:
        raise RuntimeError(
            "Allocations are recorded by TensorFlow's profiler, which another "
            "session uses. Expected: a call when that has ended."
        )
    events = window.events(device)
    if not events:
        raise ValueError(_describe_silence(device))
    timeline = timeline_of(events)
    standing = _standing_entries(model, batch, device)
    unnamed = "compiled by XLA" if plan.jit_compile else ""
    entry = _Namer(attribution, unnamed).entry
    alive = [entry(allocation) for allocation in timeline.alive_at_peak()]
    peak = timeline.in_use_bytes[timeline.peak]
    rest = peak - sum(e.bytes for e in [*standing, *alive])
    if rest > 0:
        standing.append(
            MemoryEntry(
                "other",
                UNKNOWN,
                _OLDER,
                rest,
            )
        )
    return MemoryTrace(
        device=device,
        peak_bytes=peak,
        limit_bytes=events[0].limit_bytes,
        entries=sort_entries([*standing, *alive]),
        step_entries=tuple(map(entry, timeline.allocations)),
        timeline=timeline,
        commit_bytes=timeline.in_use_bytes[0]
        + update_bytes(model, step.trainable),
        remarks=_remarks(model, plan, timeline),
    )


class _Namer:
    """Makes entries of allocations.

    Args:
        attribution: `Attribution` of the model.
        unnamed: String. What allocates without the name of an operation.
    """

    def __init__(self, attribution: Attribution, unnamed: str) -> None:
        self._attribution = attribution
        self._unnamed = unnamed

    def entry(self, allocation: Allocation) -> MemoryEntry:
        """Returns the entry of an allocation of the step."""
        layer = self._attribution.layer_of(allocation.operation)
        is_open = allocation.end == float("inf")
        return MemoryEntry(
            kind=self._attribution.kind_of(allocation),
            layer=layer or UNKNOWN,
            operation=short_operation(allocation.operation) or self._unnamed,
            bytes=allocation.bytes,
            dtype=allocation.dtype,
            shape=allocation.shape,
            address=allocation.address,
            begin=allocation.begin,
            end=None if is_open else allocation.end,
        )


def _make_run(
    model: keras.Model, batch: Any, plan: ExecutionPlan
) -> tuple[WholeStep | SplitStep, Callable[[], Any], Effects]:
    """Returns a function that runs the pure part of a step as planned."""
    step: WholeStep | SplitStep
    effects = Effects()
    if plan.is_split:
        step = split_step(model, spec_of(batch), batch, TRAINING, plan)
        pure: Callable = pure_split_function(step, plan)
        if plan.jit_compile:
            partition = partition_function(plan)
            fixed = partition(static_rows(spec_of(batch)), split_number(plan))
            split = step
            compiled = as_compiled(lambda batch: split(batch, fixed), True)

            def pure(batch: Any, value: tf.Tensor) -> Any:
                return compiled(batch)

    else:
        step, effects = _whole_step(model, batch, plan)
        whole = as_compiled(step, plan.jit_compile and not effects.writes)

        def pure(batch: Any, value: tf.Tensor) -> Any:
            return whole(batch)

    log = CommitLog()

    def run(batch: Any, value: tf.Tensor) -> None:
        _, outputs = awaited(pure(batch, value))
        with tf.control_dependencies(outputs):
            # Without an effect, nothing would be computed.
            log.mark()

    function = as_function(run, model.run_eagerly)
    value = tf.constant(split_number(plan))
    return step, lambda: function(batch, value), effects


def _whole_step(
    model: keras.Model, batch: Any, plan: ExecutionPlan
) -> tuple[WholeStep, Effects]:
    example = batch if model.run_eagerly else spec_of(batch)
    try:
        return build_whole_step(
            model, example, model.run_eagerly, TRAINING, plan
        )
    except BranchWriteError as error:
        raise ValueError(
            "A step that writes variables in branches cannot be run for its "
            f"memory alone. Received: model '{model.name}'. Expected: a model "
            "whose layers write in their `call` only."
        ) from error


@contextlib.contextmanager
def _put_back(effects: Effects) -> Iterator[None]:
    """Puts back what a step writes past Keras."""
    before = [variable.numpy() for variable in effects.variables]
    try:
        yield
    finally:
        for variable, value in zip(effects.variables, before, strict=True):
            variable.assign(value)


def _owned(batch: Any) -> Any:
    """Returns a batch whose tensors the allocator has handed out.

    On a CPU a tensor may share the memory of a NumPy array.
    """
    return tf.nest.map_structure(
        lambda leaf: None if leaf is None else tf.raw_ops.DeepCopy(x=leaf),
        batch,
        expand_composites=True,
    )


def _standing_entries(
    model: keras.Model, batch: Any, device: str
) -> list[MemoryEntry]:
    """Returns what is there before the step, as far as it is the model's."""
    weights = {id(variable) for variable in model.weights}
    kinds = [
        *(("weights" if id(v) in weights else "state", v)
          for v in model.variables),
        *(("slots", v) for v in getattr(model.optimizer, "variables", ())),
        *(("state", v) for v in model.metrics_variables),
    ]  # fmt: skip
    found, seen = [], set()
    for kind, variable in kinds:
        stored = _compat.stored_value(variable)
        if id(stored) in seen or not stored.device.endswith(device):
            continue
        seen.add(id(stored))
        owner = variable.path.rpartition("/")[0].rpartition("/")[2]
        found.append(_standing(kind, owner, variable.path, stored.read_value()))
    for leaf in tf.nest.flatten(batch, expand_composites=True):
        if leaf is not None and leaf.device.endswith(device):
            found.append(_standing("batch", "(batch)", "batch", leaf))
    return found


def _standing(
    kind: str, owner: str, name: str, tensor: tf.Tensor
) -> MemoryEntry:
    size = tensor.dtype.size * int(tf.size(tensor))
    shape = "[" + ",".join(map(str, tensor.shape)) + "]"
    return MemoryEntry(
        kind=kind,
        layer=owner or UNKNOWN,
        operation=name,
        bytes=-(-max(size, 1) // _BLOCK) * _BLOCK,
        dtype=tensor.dtype.name,
        shape=shape,
        address=_address(tensor),
    )


def _address(tensor: tf.Tensor) -> int | None:
    """Returns where a tensor of the host is."""
    if "CPU" not in tensor.device:
        return None
    try:
        view = np.frombuffer(memoryview(tensor), np.uint8)
    except (TypeError, ValueError):
        # Not every type has a format of the buffer protocol.
        return None
    return int(view.ctypes.data)


def _remarks(
    model: keras.Model, plan: ExecutionPlan, timeline: Timeline
) -> tuple[str, ...]:
    found = []
    if plan.jit_compile:
        found.append(
            "XLA plans the step's tensors into one buffer, which has no layers "
            "inside; a plan with jit_compile=False shows them."
        )
    if model.run_eagerly:
        found.append(
            "Operations that run eagerly do not carry the names of layers; a "
            "model compiled with run_eagerly=False shows them."
        )
    if plan.is_split:
        found.append(f"Sums over micro-batches stand under {LOOP}.")
    return tuple(found)


def _check(model: keras.Model) -> None:
    if not is_manageable(model):
        raise ValueError(
            "The memory of Keras' own step is traced. Received: model "
            f"'{model.name}' with a `train_step` of its own, or under a "
            "distribution strategy. Expected: neither."
        )


def _describe_silence(device: str) -> str:
    return (
        "Tracing reads what the allocator reports. Received: "
        f"{device}, which reports nothing. Expected: a GPU, or a CPU with "
        "TF_CPU_ALLOCATOR_USE_BFC=true in the environment before TensorFlow "
        "starts."
    )
