"""Starting a group of workers, and starting it again after a failure."""

from collections.abc import Callable
import dataclasses
import logging
import math
import os
import signal
import time

from keras_tfopt.launcher.cluster import Cluster
from keras_tfopt.launcher.cluster import shared_devices
from keras_tfopt.launcher.worker import Worker

_logger = logging.getLogger("keras_tfopt")

_POLL_SECONDS = 0.05
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)


@dataclasses.dataclass(frozen=True)
class LaunchSettings:
    """What to run, and what to do when a worker fails.

    Args:
        command: List of strings. Program and arguments of each worker.
        make_cluster: Callable that returns a `Cluster`, for each start. Ports
            of a group that failed may still be taken.
        max_restarts: Integer. How often the group starts again. Defaults to 0.
        grace_seconds: Float. How long workers may take to end, after a peer
            has failed and again after `SIGTERM`. Defaults to 30.
        restart_delay_seconds: Float. Time before the group starts again.
            Defaults to 1.
        gpus: List of strings or `None`. GPUs that the workers of this host
            share. Defaults to `None`, which leaves their environment.
    """

    command: list[str]
    make_cluster: Callable[[], Cluster]
    max_restarts: int = 0
    grace_seconds: float = 30.0
    restart_delay_seconds: float = 1.0
    gpus: list[str] | None = None


def launch(settings: LaunchSettings, show: Callable[[int, str], None]) -> int:
    """Runs a group of workers to the end, with restarts, and passes signals on.

    A worker that fails ends the group: the others cannot go on without it. The
    group then starts again as a whole, so that the training must find its own
    way back, as it does with `callbacks.BackupAndRestore`. A signal reaches
    all workers, and a group that was told to end does not start again.

    Call it from the main thread, which alone receives signals.

    Args:
        settings: `LaunchSettings`.
        show: Callable `(index, line)` that is given each line of output.

    Returns:
        Integer. 0, or the exit code of the worker that failed first.
    """
    received: list[int] = []
    handlers = {
        number: signal.signal(number, lambda n, _: received.append(n))
        for number in SIGNALS
    }
    try:
        for attempt in range(settings.max_restarts + 1):
            code = _Group(settings, attempt, show, received).run()
            if code == 0 or received or attempt == settings.max_restarts:
                return code
            _logger.warning(
                "Workers start again, %d of %d times.",
                attempt + 1,
                settings.max_restarts,
            )
            time.sleep(settings.restart_delay_seconds)
        return code
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


class _Group:
    """The workers of this host in one attempt."""

    def __init__(
        self,
        settings: LaunchSettings,
        attempt: int,
        show: Callable[[int, str], None],
        received: list[int],
    ) -> None:
        self._settings = settings
        self._received = received
        self._passed_on = 0
        cluster = settings.make_cluster()
        self._workers = [
            Worker(
                index,
                settings.command,
                self._environment(cluster, index, attempt),
                show,
            )
            for index in cluster.indices
        ]

    def run(self) -> int:
        """Waits for all, and returns the code of the first that failed."""
        failed: Worker | None = None
        deadline = math.inf
        harder = iter((signal.SIGTERM, signal.SIGKILL))
        while self._are_running():
            if self._pass_signals_on():
                deadline = self._deadline()
            if failed is None and (failed := self._failed()):
                deadline = min(deadline, self._deadline())
                _logger.warning(
                    "Worker %d ended with code %d; the others have %.0f s.",
                    failed.index,
                    exit_code(failed.poll()),
                    self._settings.grace_seconds,
                )
            if time.monotonic() > deadline:
                self._send(next(harder, signal.SIGKILL))
                deadline = self._deadline()
            time.sleep(_POLL_SECONDS)
        failed = failed or self._failed()
        for worker in self._workers:
            worker.close()
        return exit_code(failed.poll()) if failed else 0

    def _are_running(self) -> bool:
        return any(worker.poll() is None for worker in self._workers)

    def _failed(self) -> Worker | None:
        return next((w for w in self._workers if w.poll()), None)

    def _deadline(self) -> float:
        return time.monotonic() + self._settings.grace_seconds

    def _pass_signals_on(self) -> bool:
        """Sends the workers what was received, and returns whether it was."""
        new = self._received[self._passed_on :]
        self._passed_on += len(new)
        for number in new:
            self._send(number)
        return bool(new)

    def _send(self, number: int) -> None:
        for worker in self._workers:
            if worker.poll() is None:
                worker.send(number)

    def _environment(
        self, cluster: Cluster, index: int, attempt: int
    ) -> dict[str, str]:
        environment = {
            **os.environ,
            "TF_CONFIG": cluster.tf_config(index),
            "KERAS_TFOPT_RESTARTS": str(attempt),
            # Lines come when they are printed, not when a buffer is full.
            "PYTHONUNBUFFERED": "1",
        }
        if self._settings.gpus is not None:
            place = index - cluster.first
            own = shared_devices(self._settings.gpus, place, cluster.count)
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(own)
        return environment


def exit_code(returned: int | None) -> int:
    """Returns an exit code as shells give it, 128 and the signal.

    Args:
        returned: Integer. What `subprocess` returned, negative for a signal.
    """
    code = returned or 0
    return 128 - code if code < 0 else code
