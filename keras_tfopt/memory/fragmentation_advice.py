"""What helps against memory in pieces, on this device."""

import os

import tensorflow as tf


def fragmentation_advice(device: str) -> str:
    """Returns what to do about fragmentation, in one sentence or some.

    Args:
        device: String. Name of a logical device, such as `"GPU:0"`.
    """
    advice = []
    if "GPU" in device:
        if _grows(device):
            advice.append(
                "switch memory growth off, which makes one region of many "
                "small ones"
            )
        if os.environ.get("TF_GPU_ALLOCATOR") != "cuda_malloc_async":
            advice.append(
                "set TF_GPU_ALLOCATOR=cuda_malloc_async before TensorFlow "
                "starts"
            )
    advice.append("pad batches to few shapes")
    advice.append(
        "let `FragmentationMonitor(on_breach='compact')` move the variables "
        "together"
    )
    return "Of use: " + "; ".join(advice) + "."


def _grows(device: str) -> bool:
    """Whether TensorFlow reserves the memory of a device piece by piece."""
    if os.environ.get("TF_FORCE_GPU_ALLOW_GROWTH", "").lower() == "true":
        return True
    gpus = tf.config.list_physical_devices("GPU")
    index = int(device.rpartition(":")[-1])
    try:
        return bool(tf.config.experimental.get_memory_growth(gpus[index]))
    except (IndexError, ValueError):
        # One physical device may be several logical ones, with limits.
        return False
