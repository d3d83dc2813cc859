"""Callbacks for an ordinary `model.fit`."""

from keras_tfopt.callbacks.accumulation_scheduler import (
    AccumulationScheduler as AccumulationScheduler,
)
from keras_tfopt.callbacks.backup_and_restore import (
    BackupAndRestore as BackupAndRestore,
)
from keras_tfopt.callbacks.dynamic_batch_size import (
    DynamicBatchSize as DynamicBatchSize,
)
from keras_tfopt.callbacks.leak_detector import LeakDetector as LeakDetector
from keras_tfopt.callbacks.memory_watchdog import (
    MemoryWatchdog as MemoryWatchdog,
)
from keras_tfopt.callbacks.non_finite_rollback import (
    NonFiniteRollback as NonFiniteRollback,
)
from keras_tfopt.callbacks.oom_recovery import OOMRecovery as OOMRecovery
from keras_tfopt.callbacks.xla_compilation import (
    XLACompilation as XLACompilation,
)
