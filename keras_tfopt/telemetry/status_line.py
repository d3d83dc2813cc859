"""What a training is doing, in one line."""

from collections.abc import Iterator

from keras_tfopt.telemetry.history import Snapshot

_UNITS = ((2**30, "GiB"), (2**20, "MiB"))


def status_line(snapshot: Snapshot, eta_seconds: float | None = None) -> str:
    """Returns what is known of a training, in plain characters.

    Args:
        snapshot: `Snapshot` of its values.
        eta_seconds: Float or `None`. Time until its end. Defaults to `None`.
    """
    parts = [
        *_microbatches(snapshot),
        *_memory(snapshot),
        *_compilation(snapshot),
        *_waiting(snapshot),
        *_replicas(snapshot),
    ]
    if eta_seconds is not None:
        parts.append(f"ETA {clock_time(eta_seconds)}")
    return " - ".join(parts)


def eta_seconds(seconds: float, done: float, remaining: float) -> float | None:
    """Returns the time until what remains is done, `None` if nothing is yet.

    Args:
        seconds: Float. Time that was needed so far.
        done: Float. What was done in it.
        remaining: Float. What remains.
    """
    return seconds / done * remaining if done > 0 else None


def clock_time(seconds: float) -> str:
    """Returns seconds as hours, minutes and seconds, as far as there are any.

    Args:
        seconds: Float.
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}:{minutes:02}:{rest:02}"
    return f"{minutes}:{rest:02}"


def _microbatches(snapshot: Snapshot) -> Iterator[str]:
    size = _value(snapshot, "microbatch_size")
    count = _value(snapshot, "accumulation_steps")
    if size is not None and count is not None:
        yield f"microbatch {size:.0f} x {count:.0f}"


def _memory(snapshot: Snapshot) -> Iterator[str]:
    """Yields the bytes of the fullest device, or of the host."""
    used = snapshot.of("memory_allocated_bytes")
    limits = snapshot.of("memory_limit_bytes")
    if not used:
        resident = _value(snapshot, "host_memory_rss_bytes")
        if resident is not None:
            yield f"host {_bytes(resident)}"
        return
    labels = max(used, key=lambda key: used[key] / limits.get(key, 1e30))
    limit = f" of {_bytes(limits[labels])}" if labels in limits else ""
    yield f"{dict(labels)['device']} {_bytes(used[labels])}{limit}"


def _compilation(snapshot: Snapshot) -> Iterator[str]:
    counts = snapshot.of("xla_compilations_total")
    total = sum(counts.values())
    if not total:
        return
    refused = counts.get((("result", "fallback"),), 0.0)
    seconds = _value(snapshot, "xla_compile_seconds_total") or 0.0
    text = f"XLA {total:.0f} in {seconds:.1f} s"
    yield f"{text}, {refused:.0f} refused" if refused else text


def _waiting(snapshot: Snapshot) -> Iterator[str]:
    share = _value(snapshot, "data_wait_ratio")
    if share is not None:
        yield f"data wait {share:.0%}"


def _replicas(snapshot: Snapshot) -> Iterator[str]:
    share = _value(snapshot, "communication_time_ratio")
    if share is not None:
        yield f"communication {share:.0%}"


def _bytes(number: float) -> str:
    size, unit = next((u for u in _UNITS if number >= u[0]), _UNITS[-1])
    return f"{number / size:.1f} {unit}"


def _value(snapshot: Snapshot, name: str) -> float | None:
    return next(iter(snapshot.of(name).values()), None)
