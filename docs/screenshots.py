"""Makes the pictures of TensorBoard that the documentation shows.

`python docs/screenshots.py` trains for two minutes, starts a TensorBoard on
what was logged, and looks at it with a Chromium that has no screen. It needs
the extras `demo` and `plots`, and Chromium or Chrome.
"""

from collections.abc import Iterator
import contextlib
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

# The allocator of GPUs on a CPU, with less memory than the first step needs.
os.environ.update(
    TF_CPU_ALLOCATOR_USE_BFC="true",
    TF_CPU_BFC_MEM_LIMIT_IN_MB="60",
    TF_ENABLE_ONEDNN_OPTS="0",
)

import keras
from PIL import Image

from keras_tfopt import AccumModel
from keras_tfopt import callbacks
from keras_tfopt.benchmark import digits

PICTURES = pathlib.Path(__file__).with_name("images")
SECONDS = 120.0
# Page of TensorBoard, width and height to look at it, and colours to keep.
PAGES = {
    "dashboard": ("custom_scalars", 1500, 1960, 64),
    "plan": ("text", 1400, 1040, 32),
    "weights": ("histograms", 1400, 800, 128),
}
_WAIT_SECONDS = 120.0


class StopAfter(keras.callbacks.Callback):
    """Ends training after some time.

    Args:
        seconds: Float.
    """

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._end = time.monotonic() + seconds

    def on_epoch_end(self, epoch: int, logs: object = None) -> None:
        """Looks at the clock."""
        if time.monotonic() > self._end:
            self.model.stop_training = True


def train(folder: str) -> None:
    """Trains a network that finds too little memory, and logs it."""
    data = digits.load_digits()
    model = digits.build_network(AccumModel)
    model.compile(
        keras.optimizers.AdamW(1e-3),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    dashboard = callbacks.TensorBoardDashboard(
        f"{folder}/logs", interval_seconds=2.0, histogram_steps=20
    )
    model.fit(
        data.x_train,
        data.y_train,
        validation_data=(data.x_test, data.y_test),
        # All in one batch, whose first step does not fit.
        batch_size=len(data.x_train),
        validation_batch_size=90,
        epochs=10_000,
        verbose=0,
        callbacks=[
            callbacks.OOMRecovery(),
            callbacks.MemoryWatchdog(),
            callbacks.FragmentationMonitor(interval_steps=20),
            callbacks.GradientMonitor(interval_steps=5),
            callbacks.BackupAndRestore(f"{folder}/backup", save_freq="20s"),
            dashboard,
            StopAfter(SECONDS),
        ],
    )


@contextlib.contextmanager
def tensorboard(logs: str) -> Iterator[str]:
    """Runs a TensorBoard, and yields its address once it has read the logs."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", logs]
    command += ["--host", "127.0.0.1", "--port", str(port)]
    address = f"http://127.0.0.1:{port}"
    server = subprocess.Popen(command)
    try:
        deadline = time.monotonic() + _WAIT_SECONDS
        while not has_read(address):
            if time.monotonic() > deadline:
                raise TimeoutError(f"TensorBoard at {address} has no runs.")
            time.sleep(0.5)
        yield address
    finally:
        server.terminate()
        server.wait()


def has_read(address: str) -> bool:
    """Whether a TensorBoard knows a run of ours."""
    try:
        with urllib.request.urlopen(f"{address}/data/runs") as response:
            return b"keras_tfopt" in response.read()
    except urllib.error.URLError:
        return False


def photograph(address: str, name: str, folder: str) -> None:
    """Makes the picture of a page.

    Args:
        address: String. Address of TensorBoard.
        name: String. Name of the picture, a key of `PAGES`.
        folder: String. For what the browser writes.
    """
    page, width, height, colours = PAGES[name]
    taken = os.path.join(folder, f"{name}.png")
    subprocess.run(
        [
            browser(),
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--hide-scrollbars",
            f"--user-data-dir={folder}/{name}",
            f"--window-size={width},{height}",
            # Time runs ahead in the browser, until all requests are answered.
            "--virtual-time-budget=20000",
            f"--screenshot={taken}",
            f"{address}/#{page}",
        ],
        check=True,
        timeout=_WAIT_SECONDS,
    )
    PICTURES.mkdir(exist_ok=True)
    with Image.open(taken) as picture:
        reduced = picture.convert("RGB").quantize(colours)
        reduced.save(PICTURES / f"{name}.png", optimize=True)


def browser() -> str:
    """Returns the path of a Chromium.

    Raises:
        FileNotFoundError: If there is none.
    """
    for name in ("chromium", "chromium-browser", "google-chrome"):
        path = shutil.which(name)
        if path is not None:
            return path
    raise FileNotFoundError("Pictures need chromium or google-chrome.")


def main() -> None:
    """Trains, and makes all pictures."""
    with tempfile.TemporaryDirectory() as folder:
        train(folder)
        with tensorboard(f"{folder}/logs") as address:
            for name in PAGES:
                photograph(address, name, folder)


if __name__ == "__main__":
    main()
