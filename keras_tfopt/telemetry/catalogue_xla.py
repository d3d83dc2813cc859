"""The metrics of XLA."""

from keras_tfopt.telemetry.metric import Alert
from keras_tfopt.telemetry.metric import Condition
from keras_tfopt.telemetry.metric import Curve
from keras_tfopt.telemetry.metric import Metric
from keras_tfopt.telemetry.metric import counter
from keras_tfopt.telemetry.metric import gauge
from keras_tfopt.telemetry.signals import Share
from keras_tfopt.telemetry.signals import Value

_CALLBACK = "XLACompilation"
_SUCCESS = Share("xla_compilations_total", "result", "success")

# Charts that curves share.
_RATIOS = "share: compiled, time for it"
_FUSIONS = "fusions, operations in them"

COMPILATION: tuple[Metric, ...] = (
    counter(
        "xla_compilations_total",
        "",
        "Compilations, one for each function and shape of a batch, by whether "
        "they went well or the batch fell back to running without XLA.",
        _CALLBACK,
        (Curve("xla/compile_success_ratio", _SUCCESS, "ratio", _RATIOS),),
        ("result",),
        (
            Alert(
                "KerasTfoptXLAFallback",
                Condition(_SUCCESS, "<", 0.95),
                "XLA refuses steps, which then run without it.",
            ),
        ),
    ),
    counter(
        "xla_compile_seconds_total",
        "seconds",
        "Time that the first calls with new shapes took beyond later ones, "
        "which includes tracing.",
        _CALLBACK,
        (
            Curve(
                "xla/compile_seconds",
                Value("xla_compile_seconds_total"),
                "seconds",
            ),
        ),
    ),
    gauge(
        "xla_compile_time_ratio",
        "ratio",
        "Share of compiling in the time of all steps.",
        _CALLBACK,
        "xla",
        alerts=(
            Alert(
                "KerasTfoptXLACompileTime",
                Condition(Value("xla_compile_time_ratio"), ">", 0.05),
                "Compiling takes more than 5 % of the time. Batches of fewer "
                "shapes, or `max_shapes`, compile less.",
                also=(Condition(Value("steps_total"), ">", 200),),
                for_seconds=300,
            ),
        ),
        chart=_RATIOS,
    ),
    gauge(
        "compiled_shapes",
        "",
        "Shapes that XLA compiled for.",
        _CALLBACK,
        "xla",
        tag="compiled_shapes",
    ),
    gauge(
        "xla_fusions",
        "",
        "Kernels that do the work of several operations.",
        "optimized HLO, once XLACompilation.report looked",
        "xla",
        chart=_FUSIONS,
    ),
    gauge(
        "xla_fused_ops",
        "",
        "Operations inside of such kernels.",
        "optimized HLO, once XLACompilation.report looked",
        "xla",
        chart=_FUSIONS,
    ),
    gauge(
        "xla_fusion_saved_bytes",
        "bytes",
        "Estimate of the intermediate values of a step that fusion keeps out "
        "of memory.",
        "optimized HLO, once XLACompilation.report looked",
        "xla",
    ),
)
