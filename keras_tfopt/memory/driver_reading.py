"""What the NVIDIA driver says about one GPU, as data."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class DriverReading:
    """What the driver says about one GPU, or one instance of a cut one.

    The driver counts all processes, and what CUDA itself takes in each, which
    TensorFlow's allocator knows nothing of.

    Attributes:
        total_bytes: Integer or `None`. Memory of the GPU.
        used_bytes: Integer or `None`. What is used; with what is reserved where
            the driver does not tell the two apart, and `reserved_bytes` is
            `None`.
        free_bytes: Integer or `None`. What anybody can still get.
        reserved_bytes: Integer or `None`. What driver and firmware keep.
        own_bytes: Integer or `None`. What this process uses.
        other_bytes: Integer or `None`. What other processes use.
        utilization_ratio: Float or `None`. Share of the last period, a second
            or less, in which something was computed.
        memory_activity_ratio: Float or `None`. Share in which memory was read
            or written.
        temperature_celsius: Integer or `None`.
        power_watts: Float or `None`.
        pcie_sent_bytes_per_second: Integer or `None`. From the GPU.
        pcie_received_bytes_per_second: Integer or `None`. To the GPU.
    """

    total_bytes: int | None = None
    used_bytes: int | None = None
    free_bytes: int | None = None
    reserved_bytes: int | None = None
    own_bytes: int | None = None
    other_bytes: int | None = None
    utilization_ratio: float | None = None
    memory_activity_ratio: float | None = None
    temperature_celsius: int | None = None
    power_watts: float | None = None
    pcie_sent_bytes_per_second: int | None = None
    pcie_received_bytes_per_second: int | None = None
