"""The allocator that commands measure with."""

import os


def count_cpu_memory() -> None:
    """Gives CPUs the allocator of GPUs, which counts what it hands out.

    TensorFlow reads this when it first uses a device, not on import.
    """
    os.environ.setdefault("TF_CPU_ALLOCATOR_USE_BFC", "true")
