"""Callbacks for an ordinary `model.fit`."""

from keras_tfopt.callbacks.accumulation_scheduler import (
    AccumulationScheduler as AccumulationScheduler,
)
from keras_tfopt.callbacks.alert_notifier import AlertNotifier as AlertNotifier
from keras_tfopt.callbacks.backup_and_restore import (
    BackupAndRestore as BackupAndRestore,
)
from keras_tfopt.callbacks.console_logger import ConsoleLogger as ConsoleLogger
from keras_tfopt.callbacks.distribution_monitor import (
    DistributionMonitor as DistributionMonitor,
)
from keras_tfopt.callbacks.dynamic_batch_size import (
    DynamicBatchSize as DynamicBatchSize,
)
from keras_tfopt.callbacks.fragmentation_monitor import (
    FragmentationMonitor as FragmentationMonitor,
)
from keras_tfopt.callbacks.gradient_monitor import (
    GradientMonitor as GradientMonitor,
)
from keras_tfopt.callbacks.input_pipeline_monitor import (
    InputPipelineMonitor as InputPipelineMonitor,
)
from keras_tfopt.callbacks.json_lines_logger import (
    JSONLinesLogger as JSONLinesLogger,
)
from keras_tfopt.callbacks.leak_detector import LeakDetector as LeakDetector
from keras_tfopt.callbacks.memory_watchdog import (
    MemoryWatchdog as MemoryWatchdog,
)
from keras_tfopt.callbacks.non_finite_rollback import (
    NonFiniteRollback as NonFiniteRollback,
)
from keras_tfopt.callbacks.oom_recovery import OOMRecovery as OOMRecovery
from keras_tfopt.callbacks.plan_rollback import PlanRollback as PlanRollback
from keras_tfopt.callbacks.prometheus_exporter import (
    PrometheusExporter as PrometheusExporter,
)
from keras_tfopt.callbacks.tensorboard_dashboard import (
    TensorBoardDashboard as TensorBoardDashboard,
)
from keras_tfopt.callbacks.training_summary import (
    TrainingSummary as TrainingSummary,
)
from keras_tfopt.callbacks.xla_compilation import (
    XLACompilation as XLACompilation,
)
