"""Groups of worker processes, forked where the libraries are imported.

Each worker is a child that starts from nothing but the imported libraries: to
import them takes longer than what it does.
"""

import ctypes
import json
import os
import pathlib
import shutil
import signal
import sys
import time
import traceback

import numpy as np

from keras_tfopt.launcher import local_cluster
from tests.distribution.workers import cases
from tests.distribution.workers import runs
from tests.distribution.workers.place import Place

SECONDS = 400
_PR_SET_PDEATHSIG = 1
# Halves of the batches of `cases.exhausted` do not fit.
LITTLE_MEMORY = {
    "TF_CPU_ALLOCATOR_USE_BFC": "true",
    "TF_CPU_BFC_MEM_LIMIT_IN_MB": "100",
}


def run_group(count, work, environments=None):
    """Runs `work(place)` on some workers and returns their exit codes."""
    cluster = local_cluster(count)
    children = [
        _fork(
            work,
            {
                "TF_CONFIG": cluster.tf_config(index),
                **(environments or {}).get(index, {}),
            },
        )
        for index in cluster.indices
    ]
    deadline = time.monotonic() + SECONDS
    codes = {}
    while len(codes) < count and time.monotonic() < deadline:
        for child in children:
            if child not in codes:
                pid, status = os.waitpid(child, os.WNOHANG)
                if pid:
                    codes[child] = os.waitstatus_to_exitcode(status)
        time.sleep(0.05)
    for child in set(children) - codes.keys():
        os.kill(child, 9)
        os.waitpid(child, 0)
    return [codes.get(child, "hung") for child in children]


def _fork(work, environment):
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        os.environ.update(environment)
        work(Place())
        code = 0
    except SystemExit as exit_:
        code = exit_.code
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def run_cases(folder, chosen):
    """Returns what runs cases and leaves a file for each."""

    def work(place):
        for case in chosen:
            start = time.monotonic()
            try:
                found = case(place)
            except Exception:
                found = {"error": np.array(traceback.format_exc())}
            name = f"{case.__name__}-{place.index}.npz"
            named = {k.replace("/", "|"): v for k, v in found.items()}
            np.savez(folder / name, **named)
            print(name, round(time.monotonic() - start, 1), flush=True)

    return work


def run_all_cases(folder, names):
    """Runs the cases on two workers and on three."""
    codes = []
    for count, chosen in ((2, cases.ON_TWO), (3, cases.ON_THREE)):
        chosen = [c for c in chosen if not names or c.__name__ in names]
        own = folder / str(count)
        own.mkdir()
        os.chdir(own)
        work = run_cases(own, chosen)
        codes.append(run_group(count, work, {1: LITTLE_MEMORY}))
    return codes


def run_attempts(folder):
    """Runs one training that is interrupted again and again."""
    codes, backups = [], []
    for faults in runs.ATTEMPTS:
        work = runs.interrupted(folder, folder, faults)
        codes.append(run_group(2, work))
        own = folder / "backup/worker-1"
        backups.append([position(folder / "backup"), position(own)])
        if len(codes) == 1:
            shutil.copytree(folder / "backup", folder / "copy")
            # All must do with the one before, which all have.
            newest(own).with_name("arrays.bin").write_bytes(b"torn")
    return {"codes": codes, "backups": backups}


def newest(folder):
    """Returns the manifest of the newest backup in a folder, or `None`."""
    manifests = sorted(folder.glob("generation-*/manifest.json"))
    return manifests[-1] if manifests else None


def position(folder):
    """Returns epoch and step of the newest backup in a folder."""
    manifest = newest(folder)
    if manifest is None:
        return None
    content = json.loads(manifest.read_text().partition("\n")[2])
    return [content["state"]["content"][key] for key in ("epoch", "step")]


def main(kind, folder, *names):
    folder = pathlib.Path(folder)
    if kind == "cases":
        found = run_all_cases(folder, names)
    else:
        found = run_attempts(folder)
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
