"""Starting a group of workers, and starting it again after a failure."""

from collections.abc import Callable
import dataclasses
import logging
import math
import os
import signal
import time

from keras_tfopt.launcher.cluster import Cluster
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

    With parameter servers, a coordinator goes on while a worker is away: only
    that one starts again, as often as the group may. What ends the group is the
    end of the coordinator, of a parameter server or of the last worker.

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
        self._attempt = attempt
        self._show = show
        self._cluster = settings.make_cluster()
        self._replaced = 0
        self._workers = [self._start(index) for index in self._cluster.indices]

    def run(self) -> int:
        """Waits for all, and returns the code of the first that failed."""
        failed: Worker | None = None
        deadline = math.inf
        harder = iter((signal.SIGTERM, signal.SIGKILL))
        while self._are_running():
            if self._pass_signals_on():
                deadline = self._deadline()
            if failed is None:
                self._replace_workers()
            if self._has_coordinator_ended() and deadline == math.inf:
                deadline = self._deadline()
            if failed is None and (failed := self._failed()):
                deadline = min(deadline, self._deadline())
                _logger.warning(
                    "%s ended with code %d; the others have %.0f s.",
                    self._name(failed),
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
        ended = [w for w in self._workers if w.poll()]
        return next((w for w in ended if self._is_needed(w)), None)

    def _is_needed(self, worker: Worker) -> bool:
        """Whether the group cannot go on without a worker."""
        if not self._cluster.parameter_servers or worker.index == 0:
            return True
        if self._has_coordinator_ended():
            return False
        return not self._is_replaceable(worker) or not any(
            self._is_replaceable(w) and w.poll() is None for w in self._workers
        )

    def _has_coordinator_ended(self) -> bool:
        is_coordinated = bool(self._cluster.parameter_servers)
        return is_coordinated and self._workers[0].poll() is not None

    def _is_replaceable(self, worker: Worker) -> bool:
        """Whether a coordinator goes on while a worker is away."""
        is_coordinated = bool(self._cluster.parameter_servers)
        job, _ = self._cluster.task(worker.index)
        return is_coordinated and job == "worker"

    def _replace_workers(self) -> None:
        """Starts workers of a coordinator again that have failed."""
        for place, worker in enumerate(self._workers):
            if (
                worker.poll()
                and self._is_replaceable(worker)
                and not self._received
                and not self._has_coordinator_ended()
                and self._replaced < self._settings.max_restarts
            ):
                self._replaced += 1
                _logger.warning(
                    "%s ended with code %d and starts again, %d of %d times.",
                    self._name(worker),
                    exit_code(worker.poll()),
                    self._replaced,
                    self._settings.max_restarts,
                )
                worker.close()
                self._workers[place] = self._start(worker.index)

    def _name(self, worker: Worker) -> str:
        return self._cluster.name_of(worker.index).capitalize()

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

    def _start(self, index: int) -> Worker:
        environment = self._environment(index)
        return Worker(index, self._settings.command, environment, self._show)

    def _environment(self, index: int) -> dict[str, str]:
        cluster = self._cluster
        environment = {
            **os.environ,
            "TF_CONFIG": cluster.tf_config(index),
            "KERAS_TFOPT_RESTARTS": str(self._attempt),
            # Lines come when they are printed, not when a buffer is full.
            "PYTHONUNBUFFERED": "1",
        }
        if self._settings.gpus is not None:
            own = cluster.devices_of(index, self._settings.gpus)
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(own)
        return environment


def exit_code(returned: int | None) -> int:
    """Returns an exit code as shells give it, 128 and the signal.

    Args:
        returned: Integer. What `subprocess` returned, negative for a signal.
    """
    code = returned or 0
    return 128 - code if code < 0 else code
