"""Which of several workers a process is."""

import json
from typing import Any


def worker_of(tf_config: str | None) -> tuple[str, int] | None:
    """Returns the name of this worker, and how many share its host before it.

    Args:
        tf_config: String or `None`. The variable `TF_CONFIG`.

    Returns:
        Tuple of the name and the number, or `None` for a process on its own.
    """
    if not tf_config:
        return None
    config: Any = json.loads(tf_config)
    cluster, task = config.get("cluster") or {}, config.get("task") or {}
    tasks = [
        (kind, index, address.rpartition(":")[0])
        for kind in sorted(cluster)
        for index, address in enumerate(cluster[kind])
    ]
    mine = (task.get("type"), int(task.get("index", 0)))
    if len(tasks) < 2 or mine not in [entry[:2] for entry in tasks]:
        return None
    position = [entry[:2] for entry in tasks].index(mine)
    host = tasks[position][2]
    before = [entry for entry in tasks[:position] if entry[2] == host]
    return f"{mine[0]}-{mine[1]}", len(before)


def is_chief(tf_config: str | None) -> bool:
    """Whether this worker is the one that writes what is there once.

    Args:
        tf_config: String or `None`. The variable `TF_CONFIG`.
    """
    worker = worker_of(tf_config)
    if worker is None or tf_config is None:
        return True
    cluster = json.loads(tf_config)["cluster"]
    chiefs = [kind for kind in ("chief", "master") if kind in cluster]
    return worker[0] == f"{chiefs[0] if chiefs else 'worker'}-0"
