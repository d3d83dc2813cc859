"""A trained model as machine code, for programs without Python."""

from collections.abc import Sequence
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
from typing import Any

import keras
import tensorflow as tf

# Of the runtime that TensorFlow ships as source: what every model needs, and
# what one needs whose code includes the header of that name.
_RUNTIME = (
    "tensorflow/compiler/tf2xla/xla_compiled_cpu_function.cc",
    "tensorflow/compiler/tf2xla/allocator.cc",
    "xla/executable_run_options.cc",
    "xla/backends/cpu/runtime/rng_state_lib.cc",
)
_KERNELS = {
    "dot_lib": "xla/backends/cpu/runtime/dot_lib_f32.cc",
    "convolution_lib": "xla/backends/cpu/runtime/convolution_lib_f32_2d.cc",
    "sort_lib": "xla/backends/cpu/runtime/sort_lib.cc",
}
_ENTRY = """
#include <cstring>
#include "{name}.h"

extern "C" int {name}_num_inputs() {{ return CompiledModel::kNumArgs; }}
extern "C" int {name}_num_outputs() {{ return CompiledModel::kNumResults; }}
extern "C" long long {name}_input_bytes(int index) {{
  return CompiledModel::ArgSize(index);
}}
extern "C" int {name}_run(
    const void* const* inputs, const void** outputs) {{
  static thread_local CompiledModel model;
  for (int i = 0; i < {name}_num_inputs(); ++i) {{
    std::memcpy(model.arg_data(i), inputs[i], CompiledModel::ArgSize(i));
  }}
  if (!model.Run()) return 1;
  for (int i = 0; i < {name}_num_outputs(); ++i) {{
    outputs[i] = model.result_data(i);
  }}
  return 0;
}}
"""


def compile_ahead_of_time(
    model: keras.Model,
    directory: str | os.PathLike,
    input_signature: Sequence[keras.InputSpec],
    name: str = "model",
) -> pathlib.Path:
    """Compiles a model's prediction to a shared library with a C interface.

    For serving on CPUs of the kind that it is compiled on. The library is
    called without Python; it needs `libtensorflow_framework.so.2` next to it,
    which is found where TensorFlow is installed now. It exports, for the name
    `model`:

    - `int model_run(const void* const* inputs, const void** outputs)`, which
      returns 0 and points to outputs that are valid until the next call in the
      same thread
    - `int model_num_inputs()`, `int model_num_outputs()`
    - `long long model_input_bytes(int index)`

    Needs a C++ compiler, `g++` or what `CXX` names, and takes about a minute;
    two more for convolutions. The pip package of TensorFlow has no `tfcompile`
    program and no compiled runtime; this uses `saved_model_cli` and the sources
    of the runtime, which it has.

    Example:

    ```python
    import keras
    from keras_tfopt.compilation import compile_ahead_of_time

    def deploy(model):
        signature = [keras.InputSpec(shape=(8, 16), dtype="float32")]
        return compile_ahead_of_time(model, "deployed", signature)
    ```

    Args:
        model: A built Keras model.
        directory: Path. Where to put the library; it is made if need be.
        input_signature: List of `keras.InputSpec`, one for each input, with all
            dimensions given.
        name: String. Name of the library, and how its functions begin. Defaults
            to `"model"`.

    Returns:
        Path of the library.

    Raises:
        ValueError: If a dimension is not given, or the name is no C identifier.
        RuntimeError: If there is no compiler, or it or XLA fails.
    """
    _check(input_signature, name)
    compiler = shutil.which(os.environ.get("CXX", "g++"))
    if compiler is None:
        raise RuntimeError(
            "Compiling ahead of time needs a C++ compiler. Received: "
            f"CXX={os.environ.get('CXX')!r}, which is not found. Expected: "
            "`g++`, or the environment variable CXX."
        )
    target = pathlib.Path(directory).absolute()
    target.mkdir(parents=True, exist_ok=True)
    library = target / f"lib{name}.so"
    with tempfile.TemporaryDirectory() as temporary:
        work = pathlib.Path(temporary)
        _save(model, work / "saved", input_signature)
        _make_objects(work, name)
        _link(work, name, compiler, library)
    return library


def _check(input_signature: Sequence[keras.InputSpec], name: str) -> None:
    for spec in input_signature:
        if spec.shape is None or None in spec.shape:
            raise ValueError(
                "Invalid value for argument `input_signature`. Received: the "
                f"shape {spec.shape}. Expected: all dimensions, as machine "
                "code is for one shape."
            )
    if not re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII):
        raise ValueError(
            f"Invalid value for argument `name`. Received: name={name!r}. "
            "Expected: a C identifier, such as 'model'."
        )


def _save(
    model: keras.Model,
    path: pathlib.Path,
    input_signature: Sequence[keras.InputSpec],
) -> None:
    """Saves a prediction; `model.export` may forget the number of rows."""

    def predict(*inputs: tf.Tensor) -> Any:
        x = inputs[0] if len(inputs) == 1 else list(inputs)
        return model(x, training=False)

    signature = [tf.TensorSpec(s.shape, s.dtype) for s in input_signature]
    function = tf.function(predict, signature, autograph=False)
    function.get_concrete_function()
    archive = keras.export.ExportArchive()
    archive.track(model)
    archive.add_endpoint("serve", function)
    archive.write_out(path, verbose=False)


def _make_objects(work: pathlib.Path, name: str) -> None:
    """Lets XLA make object files and a header of a saved model."""
    tool = pathlib.Path(sys.executable).with_name("saved_model_cli")
    _run(
        [
            str(tool) if tool.exists() else "saved_model_cli",
            "aot_compile_cpu",
            f"--dir={work / 'saved'}",
            "--tag_set=serve",
            "--signature_def_key=serving_default",
            f"--output_prefix={work / name}",
            "--cpp_class=CompiledModel",
            "--variables_to_feed=",
        ]
    )


def _link(
    work: pathlib.Path, name: str, compiler: str, library: pathlib.Path
) -> None:
    """Builds the library of XLA's objects and the runtime's sources."""
    root = pathlib.Path(tf.sysconfig.get_lib())
    sources = root / "xla_aot_runtime_src"
    entry = work / "entry.cc"
    entry.write_text(_ENTRY.format(name=name))
    header = (work / f"{name}.h").read_text()
    runtime = list(_RUNTIME) + [
        source
        for kernel, source in _KERNELS.items()
        if f"xla/backends/cpu/runtime/{kernel}.h" in header
    ]
    _run(
        [
            compiler,
            "-w",
            "-std=c++17",
            "-O2",
            "-fPIC",
            "-shared",
            *(f"-I{path}" for path in (work, root / "include", sources)),
            str(entry),
            # TensorFlow 2.20 has less of it, and needs less.
            *(
                str(path)
                for path in map(sources.joinpath, runtime)
                if path.exists()
            ),
            *(str(path) for path in sorted(work.glob(f"{name}*.o"))),
            f"-L{root}",
            "-l:libtensorflow_cc.so.2",
            "-l:libtensorflow_framework.so.2",
            "-Wl,--no-undefined",
            "-Wl,--as-needed",
            f"-Wl,-rpath,{root}",
            "-o",
            str(library),
        ]
    )


def _run(command: list[str]) -> None:
    try:
        process = subprocess.run(command, capture_output=True, text=True)
    except OSError as error:
        raise RuntimeError(f"`{command[0]}` cannot be run: {error}") from error
    if process.returncode:
        end = "\n".join(process.stderr.splitlines()[-20:])
        raise RuntimeError(
            f"`{pathlib.Path(command[0]).name}` failed with status "
            f"{process.returncode}. It says:\n{end}"
        )
