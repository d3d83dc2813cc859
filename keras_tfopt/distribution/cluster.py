"""TF_CONFIG: which processes train together, and which one this is."""

import dataclasses
import json
from typing import Any
from typing import NoReturn

_JOBS = ("chief", "worker", "ps", "evaluator")


@dataclasses.dataclass(frozen=True)
class ClusterConfig:
    """What TF_CONFIG says, checked.

    Attributes:
        jobs: Dict from the name of a job to the tuple of the `host:port` of its
            tasks.
        task_type: String. The job of this process.
        task_index: Integer. Its place in that job.
    """

    jobs: dict[str, tuple[str, ...]]
    task_type: str
    task_index: int

    @property
    def workers(self) -> tuple[str, ...]:
        """Addresses of all that train, the chief first."""
        return self.jobs.get("chief", ()) + self.jobs.get("worker", ())

    @property
    def members(self) -> tuple[str, ...]:
        """Addresses of all that a training needs."""
        return self.workers + self.jobs.get("ps", ())

    @property
    def is_chief(self) -> bool:
        """Whether this process writes what one process must write."""
        first = "chief" if "chief" in self.jobs else "worker"
        return self.task_type == first and self.task_index == 0

    @property
    def has_parameter_servers(self) -> bool:
        """Whether the weights lie on processes of their own."""
        return bool(self.jobs.get("ps"))


def parse_tf_config(text: str | None) -> ClusterConfig | None:
    """Reads the value of the environment variable TF_CONFIG.

    TensorFlow takes almost any text, and waits for minutes for processes that a
    misspelt one does not name.

    Example:

    ```python
    from keras_tfopt.distribution import parse_tf_config

    config = parse_tf_config(
        '{"cluster": {"worker": ["10.0.0.1:2222", "10.0.0.2:2222"]},'
        ' "task": {"type": "worker", "index": 1}}'
    )
    assert len(config.workers) == 2 and not config.is_chief
    ```

    Args:
        text: String, or `None` where the variable is not set.

    Returns:
        `ClusterConfig`; `None` if there is no text.

    Raises:
        ValueError: Names the field that is wrong.
    """
    if not text or not text.strip():
        return None
    try:
        config = json.loads(text)
    except json.JSONDecodeError as error:
        _refuse("TF_CONFIG", text, f"JSON ({error})")
    if not isinstance(config, dict):
        _refuse("TF_CONFIG", config, "an object with `cluster` and `task`")
    if not config:
        return None
    jobs = _parse_jobs(config.get("cluster"))
    return ClusterConfig(jobs, *_parse_task(config.get("task"), jobs))


def _parse_jobs(cluster: Any) -> dict[str, tuple[str, ...]]:
    if not isinstance(cluster, dict) or not cluster:
        _refuse("cluster", cluster, 'an object such as {"worker": ["host:1"]}')
    seen: dict[str, str] = {}
    for job, addresses in cluster.items():
        field = f"cluster.{job}"
        if job not in _JOBS:
            _refuse(field, job, f"a job named one of {', '.join(_JOBS)}")
        if not isinstance(addresses, list) or not addresses:
            _refuse(field, addresses, 'a list of "host:port"')
        if job == "chief" and len(addresses) > 1:
            _refuse(field, addresses, "one address: there is one chief")
        for index, address in enumerate(addresses):
            field = f"cluster.{job}[{index}]"
            _check_address(field, address)
            if address in seen:
                _refuse(field, address, f"another address than {seen[address]}")
            seen[address] = field
    if not (cluster.keys() & {"chief", "worker"}):
        _refuse("cluster", cluster, "a job that trains: chief or worker")
    return {job: tuple(addresses) for job, addresses in cluster.items()}


def _check_address(field: str, address: Any) -> None:
    wanted = '"host:port" with a port from 1 to 65535'
    if not isinstance(address, str):
        _refuse(field, address, wanted)
    host, _, port = address.rpartition(":")
    is_port = port.isascii() and port.isdigit() and 0 < int(port) < 65536
    if not host or "/" in host or host != host.strip() or not is_port:
        _refuse(field, address, wanted)


def _parse_task(task: Any, jobs: dict[str, tuple[str, ...]]) -> tuple[str, int]:
    if not isinstance(task, dict):
        _refuse("task", task, 'an object like {"type": "worker", "index": 0}')
    job, index = task.get("type"), task.get("index")
    # An evaluator is no part of the cluster that trains.
    known = (*jobs, "evaluator")
    if job not in known:
        _refuse("task.type", job, f"one of {', '.join(dict.fromkeys(known))}")
    if isinstance(index, str) and index.isascii() and index.isdigit():
        # TensorFlow takes it, and some launchers write it.
        index = int(index)
    if isinstance(index, bool) or not isinstance(index, int):
        _refuse("task.index", index, "an integer")
    count = len(jobs.get(job, ())) or 1
    if not 0 <= index < count:
        _refuse(
            "task.index", index, f"0 to {count - 1}, the tasks of cluster.{job}"
        )
    return job, index


def _refuse(field: str, value: Any, expected: str) -> NoReturn:
    name = field if field == "TF_CONFIG" else f"TF_CONFIG, field `{field}`"
    raise ValueError(
        f"Invalid value of {name}. Received: {value!r}. Expected: {expected}."
    )
