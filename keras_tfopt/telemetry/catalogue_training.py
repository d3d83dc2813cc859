"""The metrics of training itself."""

from keras_tfopt.telemetry.metric import Alert
from keras_tfopt.telemetry.metric import Condition
from keras_tfopt.telemetry.metric import Curve
from keras_tfopt.telemetry.metric import Metric
from keras_tfopt.telemetry.metric import counter
from keras_tfopt.telemetry.metric import gauge
from keras_tfopt.telemetry.metric import quantile_curve
from keras_tfopt.telemetry.metric import rate_curve
from keras_tfopt.telemetry.signals import Age
from keras_tfopt.telemetry.signals import Average
from keras_tfopt.telemetry.signals import Increase
from keras_tfopt.telemetry.signals import Quotient
from keras_tfopt.telemetry.signals import Rate
from keras_tfopt.telemetry.signals import Value

STEP_SECONDS = (
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5,
    1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0,
)  # fmt: skip

# Why a plan may change: all values of the label `reason`.
PLAN_REASONS = (
    "out_of_memory",
    "regrow",
    "planned",
    "schedule",
    "xla",
    "xla_refused",
    "other",
)

_LOOP = "times of fit"

# Charts that curves share.
_EVENTS = "loss spikes, steps that are not finite"
_LOSSES = "loss: mean of the epoch, step alone"
_QUIET = "vanishing gradients, dead units"
_BACKUP_SECONDS = "seconds: writing, standing still"

TRAINING: tuple[Metric, ...] = (
    gauge(
        "loss",
        "",
        "Loss as Keras reports it, a running mean over the epoch.",
        "logs of Keras",
        "train",
        chart=_LOSSES,
    ),
    gauge(
        "step_loss",
        "",
        "Loss of the last step alone, taken out of the running mean.",
        "logs of Keras and rows of the batches",
        "train",
        chart=_LOSSES,
    ),
    counter(
        "loss_spikes_total",
        "",
        "Steps whose own loss is above three times its moving average.",
        "logs of Keras",
        (
            Curve(
                "train/loss_spikes", Value("loss_spikes_total"), chart=_EVENTS
            ),
        ),
        alerts=(
            Alert(
                "KerasTfoptLossSpikes",
                Condition(Increase("loss_spikes_total", 600), ">", 3),
                "The loss spikes. Look at the batches, lower the learning "
                "rate, or clip gradients.",
            ),
        ),
    ),
    counter(
        "nonfinite_steps_total",
        "",
        "Steps whose loss or gradients are not finite, as far as known: a "
        "running mean hides those after the first of an epoch.",
        "logs of Keras and refused batches",
        (
            Curve(
                "train/nonfinite_steps",
                Value("nonfinite_steps_total"),
                chart=_EVENTS,
            ),
        ),
        alerts=(
            Alert(
                "KerasTfoptNonFinite",
                Condition(Increase("nonfinite_steps_total", 600), ">", 0),
                "A loss or gradient is NaN or infinite. NonFiniteRollback "
                "keeps such steps out of the weights.",
                severity="critical",
            ),
        ),
    ),
    counter(
        "steps_total",
        "",
        "Optimizer updates made.",
        "guarded step, or batches of Keras",
        (rate_curve("train/steps_per_second", "steps_total"),),
    ),
    counter(
        "samples_total",
        "",
        "Rows trained on.",
        "batches",
        (rate_curve("train/samples_per_second", "samples_total"),),
        alerts=(
            Alert(
                "KerasTfoptThroughputDrop",
                Condition(
                    Quotient(
                        Rate("samples_total", 60), Rate("samples_total", 1800)
                    ),
                    "<",
                    0.7,
                ),
                "Training is slower than before by more than 30 %.",
                for_seconds=300,
            ),
        ),
    ),
    Metric(
        "step_duration_seconds",
        "histogram",
        "seconds",
        "Wall time of an update, with drawing its batches.",
        _LOOP,
        curves=(
            quantile_curve(
                "train/step_seconds", "step_duration_seconds", STEP_SECONDS, 0.5
            ),
            quantile_curve(
                "train/step_seconds_p05",
                "step_duration_seconds",
                STEP_SECONDS,
                0.05,
            ),
            quantile_curve(
                "train/step_seconds_p95",
                "step_duration_seconds",
                STEP_SECONDS,
                0.95,
            ),
        ),
        buckets=STEP_SECONDS,
    ),
    gauge(
        "data_wait_ratio",
        "ratio",
        "Share of the time of training that is spent waiting for batches.",
        "guarded step, which draws them outside of the graph",
        "train",
        alerts=(
            Alert(
                "KerasTfoptInputBound",
                Condition(Value("data_wait_ratio"), ">", 0.10),
                "Training waits for data. Prefetch, cache, or map in parallel.",
                for_seconds=300,
                severity="info",
            ),
        ),
    ),
    counter(
        "data_wait_seconds_total",
        "seconds",
        "Time spent waiting for batches.",
        "guarded step",
    ),
    gauge(
        "last_step_timestamp_seconds",
        "seconds",
        "When the last step ended; absent once training has ended.",
        "clock",
        None,
        alerts=(
            Alert(
                "KerasTfoptStalled",
                Condition(Age("last_step_timestamp_seconds"), ">", 300),
                "No step has ended for five minutes.",
                severity="critical",
            ),
        ),
    ),
    gauge(
        "microbatch_size",
        "",
        "Rows of the largest micro-batch of the last batch.",
        "plan in force",
        "train",
    ),
    gauge(
        "accumulation_steps",
        "",
        "Micro-batches of the last batch.",
        "plan in force",
        "train",
    ),
    counter(
        "oom_recoveries_total",
        "",
        "Changes of plan after an out-of-memory error.",
        "plan events",
        (Curve("memory/oom_recoveries", Value("oom_recoveries_total")),),
        alerts=(
            Alert(
                "KerasTfoptOutOfMemory",
                Condition(Increase("oom_recoveries_total", 600), ">", 0),
                "A step ran out of memory and ran again in smaller parts. A "
                "smaller micro-batch from the start costs no failures.",
            ),
        ),
    ),
    counter(
        "plan_changes_total",
        "",
        "Changes of plan.",
        "plan events",
        (Curve("train/plan_changes", Value("plan_changes_total")),),
        labels=("reason",),
    ),
    counter(
        "plan_changes_failed_total",
        "",
        "Changes of plan under which the same batch failed again.",
        "plan events and failures of steps",
        labels=("reason",),
    ),
    gauge(
        "gradient_norm",
        "",
        "Norm of all gradients of an update, unscaled and before clipping.",
        "GradientMonitor",
        "optimizer",
        alerts=(
            Alert(
                "KerasTfoptGradientSpike",
                Condition(
                    Quotient(
                        Value("gradient_norm"), Average("gradient_norm", 600)
                    ),
                    ">",
                    10,
                ),
                "The gradient is ten times its average. Clip it, or look at "
                "the batches.",
            ),
        ),
    ),
    gauge(
        "gradient_vanishing_ratio",
        "ratio",
        "Share of the variables whose gradient is below 1e-7 of their weights.",
        "GradientMonitor",
        "optimizer",
        alerts=(
            Alert(
                "KerasTfoptVanishingGradients",
                Condition(Value("gradient_vanishing_ratio"), ">", 0.5),
                "Most variables get almost no gradient.",
                for_seconds=300,
            ),
        ),
        chart=_QUIET,
    ),
    gauge(
        "gradient_dead_unit_ratio",
        "ratio",
        "Share of the units that got no gradient in the last looks at them.",
        "GradientMonitor",
        "optimizer",
        chart=_QUIET,
    ),
    gauge(
        "update_ratio",
        "ratio",
        "Norm of the last update seen, relative to that of the weights.",
        "GradientMonitor",
        "optimizer",
    ),
    gauge(
        "backup_seconds",
        "seconds",
        "Time that a thread took to write the last backup.",
        "BackupAndRestore",
        "backup",
        tag="seconds",
        chart=_BACKUP_SECONDS,
    ),
    gauge(
        "backup_stall_seconds",
        "seconds",
        "Time that training stood still for the last backup.",
        "BackupAndRestore",
        "backup",
        chart=_BACKUP_SECONDS,
    ),
    gauge(
        "backup_age_seconds",
        "seconds",
        "Time since the state that the last complete backup holds.",
        "BackupAndRestore",
        "backup",
        alerts=(
            Alert(
                "KerasTfoptBackupOld",
                Condition(Value("backup_age_seconds"), ">", 3600),
                "The last complete backup is more than an hour old. See "
                "whether the disk is full, or back up more often.",
            ),
        ),
    ),
    Metric(
        "build_info",
        "info",
        "",
        "Versions that the run is made of.",
        "installed packages",
        ("version", "tensorflow", "keras"),
    ),
    counter(
        "telemetry_overhead_seconds_total",
        "seconds",
        "Processor time that telemetry itself took.",
        "clocks around its hooks and in its thread",
        (
            rate_curve(
                "telemetry/overhead_ratio",
                "telemetry_overhead_seconds_total",
                "ratio",
            ),
        ),
        alerts=(
            Alert(
                "KerasTfoptTelemetryCost",
                Condition(
                    Rate("telemetry_overhead_seconds_total", 300), ">", 0.01
                ),
                "Telemetry takes more than 1 % of the time. Publish less "
                "often.",
                for_seconds=60,
            ),
        ),
    ),
)
