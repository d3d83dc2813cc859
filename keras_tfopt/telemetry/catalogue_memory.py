"""The metrics of memory."""

from keras_tfopt.telemetry.metric import Alert
from keras_tfopt.telemetry.metric import Condition
from keras_tfopt.telemetry.metric import Metric
from keras_tfopt.telemetry.metric import counter
from keras_tfopt.telemetry.metric import gauge
from keras_tfopt.telemetry.metric import rate_curve
from keras_tfopt.telemetry.signals import Quotient
from keras_tfopt.telemetry.signals import Rate
from keras_tfopt.telemetry.signals import Value

_DEVICE = ("device",)
_ALLOCATOR = "allocator of TensorFlow"

# Charts that curves share.
_BYTES = "bytes: in use, peak, driver"
_RATIOS = "utilization, fragmentation"

MEMORY: tuple[Metric, ...] = (
    gauge(
        "memory_allocated_bytes",
        "bytes",
        "Bytes that live tensors occupy. Leaves out what the allocator holds "
        "beyond that, the driver's context and other processes.",
        _ALLOCATOR,
        "memory",
        _DEVICE,
        chart=_BYTES,
    ),
    gauge(
        "memory_allocated_peak_bytes",
        "bytes",
        "Most bytes that tensors occupied at once since the last reset.",
        _ALLOCATOR,
        "memory",
        _DEVICE,
        chart=_BYTES,
    ),
    gauge(
        "memory_device_used_bytes",
        "bytes",
        "Bytes of the device in use by all processes, with contexts and "
        "libraries. Never equals what TensorFlow counts.",
        "MemoryWatchdog, from the driver (NVML)",
        "memory",
        _DEVICE,
        chart=_BYTES,
    ),
    gauge(
        "memory_limit_bytes",
        "bytes",
        "Bytes that the allocator of TensorFlow may hand out.",
        "configuration of the device, or driver",
        None,
        _DEVICE,
    ),
    gauge(
        "memory_utilization_ratio",
        "ratio",
        "Peak of the allocator since the last reset, relative to its limit.",
        _ALLOCATOR,
        "memory",
        _DEVICE,
        (
            Alert(
                "KerasTfoptMemoryAlmostFull",
                Condition(Value("memory_utilization_ratio"), ">", 0.85),
                "Device memory is almost full. Smaller micro-batches, remat "
                "or offload need less.",
                for_seconds=60,
            ),
            Alert(
                "KerasTfoptMemoryFull",
                Condition(Value("memory_utilization_ratio"), ">", 0.90),
                "The next larger batch may not fit. `OOMRecovery` lets "
                "training go on in smaller micro-batches.",
                for_seconds=60,
                severity="critical",
            ),
        ),
        chart=_RATIOS,
    ),
    gauge(
        "memory_fragmentation_ratio",
        "ratio",
        "Share of the free memory that is not in its largest free block.",
        "FragmentationMonitor, in short windows of the profiler",
        "memory",
        _DEVICE,
        (
            Alert(
                "KerasTfoptMemoryFragmented",
                Condition(Value("memory_fragmentation_ratio"), ">", 0.20),
                "Free memory is in small blocks. Shapes that change less "
                "often fragment less.",
                also=(Condition(Value("memory_utilization_ratio"), ">", 0.5),),
                for_seconds=120,
            ),
        ),
        chart=_RATIOS,
    ),
    gauge(
        "memory_leak_bytes_per_epoch",
        "bytes",
        "Robust slope of the memory in use at the ends of epochs.",
        "LeakDetector, from the allocator; /proc for the host",
        "memory",
        _DEVICE,
        (
            Alert(
                "KerasTfoptMemoryLeak",
                Condition(
                    Quotient(
                        Value("memory_leak_bytes_per_epoch"),
                        Value("memory_limit_bytes"),
                    ),
                    ">",
                    0.005,
                ),
                "Memory grows with every epoch.",
            ),
        ),
    ),
    gauge(
        "host_memory_rss_bytes",
        "bytes",
        "Bytes of this process in the memory of the host.",
        "/proc/self/statm",
        "memory",
        tag="host_rss_bytes",
    ),
    counter(
        "memory_swaps_total",
        "",
        "Copies between device and host that offloading made.",
        "offload",
        (rate_curve("memory/swaps_per_second", "memory_swaps_total"),),
        ("direction",),
        (
            Alert(
                "KerasTfoptSwapping",
                Condition(Rate("memory_swaps_total", 60), ">", 10),
                "Offloading moves tensors more than ten times a second.",
                for_seconds=60,
            ),
        ),
    ),
    counter(
        "memory_swapped_bytes_total",
        "bytes",
        "Bytes that offloading moved between device and host.",
        "offload",
        (
            rate_curve(
                "memory/swapped_bytes_per_second",
                "memory_swapped_bytes_total",
                "bytes",
            ),
        ),
        ("direction",),
    ),
    gauge(
        "offload_hit_ratio",
        "ratio",
        "Share of offloaded tensors that were back before they were needed.",
        "offload",
        "memory",
    ),
)
