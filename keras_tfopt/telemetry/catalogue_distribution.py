"""The metrics of replicas."""

from keras_tfopt.telemetry.metric import Alert
from keras_tfopt.telemetry.metric import Condition
from keras_tfopt.telemetry.metric import Metric
from keras_tfopt.telemetry.metric import counter
from keras_tfopt.telemetry.metric import gauge
from keras_tfopt.telemetry.metric import rate_curve
from keras_tfopt.telemetry.signals import Value

_GROUP = "distribute"
_SOURCE = "DistributionMonitor"

# Charts that curves share.
_RATIOS = "communication, imbalance"

DISTRIBUTION: tuple[Metric, ...] = (
    gauge(
        "communication_time_ratio",
        "ratio",
        "Share of adding up gradients in the time of a step, once the slowest "
        "replica has its own.",
        _SOURCE,
        _GROUP,
        ("source",),
        (
            Alert(
                "KerasTfoptCommunicationBound",
                Condition(Value("communication_time_ratio"), ">", 0.20),
                "Replicas spend their time on communication. Larger batches "
                "per replica communicate less.",
                for_seconds=300,
            ),
            Alert(
                "KerasTfoptCommunicationDominates",
                Condition(Value("communication_time_ratio"), ">", 0.30),
                "Almost a third of the time is communication. Fewer replicas, "
                "or larger batches for each, may be as fast.",
                for_seconds=300,
                severity="critical",
            ),
        ),
        chart=_RATIOS,
    ),
    gauge(
        "load_imbalance_ratio",
        "ratio",
        "How much longer the slowest replica computes than the mean of all.",
        _SOURCE,
        _GROUP,
        alerts=(
            Alert(
                "KerasTfoptStraggler",
                Condition(Value("load_imbalance_ratio"), ">", 0.10),
                "One replica is slower than the others.",
                for_seconds=300,
            ),
        ),
        chart=_RATIOS,
    ),
    gauge(
        "replica_compute_seconds",
        "seconds",
        "Time that a replica takes for its own gradients in a step.",
        _SOURCE,
        _GROUP,
        ("replica",),
    ),
    counter(
        "reduced_bytes_total",
        "bytes",
        "Gradients that each replica gave to be added up.",
        _SOURCE,
        (
            rate_curve(
                "distribute/reduced_bytes_per_second",
                "reduced_bytes_total",
                "bytes",
            ),
        ),
    ),
)
