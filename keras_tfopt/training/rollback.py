"""Earlier weights in the middle of a run."""

import keras

from keras_tfopt import _compat
from keras_tfopt.checkpoint.generation import VARIABLES
from keras_tfopt.checkpoint.variables import assign
from keras_tfopt.checkpoint.variables import check_specs
from keras_tfopt.checkpoint.variables import specs_of
from keras_tfopt.checkpoint.variables import split_by_owner
from keras_tfopt.checkpoint.variables import variables_of
from keras_tfopt.checkpoint.writer import wait_for_writers
from keras_tfopt.training.backup_peers import peers_of
from keras_tfopt.training.run_state import spec_of_entry


def roll_back(
    model: keras.Model, backup_dir: str, learning_rate_factor: float
) -> str:
    """Puts weights and optimizer of the last finite backup into a model.

    The position in the data, metrics and seeds stay: the batches since the
    backup are not trained on again, and other random numbers are drawn.

    Args:
        model: The compiled model that is trained.
        backup_dir: String. Folder of a `BackupAndRestore`.
        learning_rate_factor: Float. What the present learning rate is
            multiplied by.

    Returns:
        String. What was done, for the log.

    Raises:
        ValueError: If the backup is one of another model.
    """
    wait_for_writers()
    peers = peers_of(_compat.strategy_of(model))
    saved = peers.latest(peers.generations(backup_dir, 2), finite=True)
    if saved is None:
        return "no finite backup to go back to"
    variables = variables_of(model)
    kept = {id(variable) for variable in model.metrics_variables}
    if peers.workers > 1:
        shared, own = split_by_owner(variables)
        variables = [*shared, *own]
        kept |= set(map(id, own))
    entries = saved.state["content"]["run"]["variables"]
    check_specs([spec_of_entry(e) for e in entries], specs_of(variables))
    chosen = [
        (variable, saved.arrays[f"{VARIABLES}{index}"])
        for index, variable in enumerate(variables)
        if id(variable) not in kept
        and not getattr(variable, "path", "").endswith("seed_generator_state")
    ]
    rate = _learning_rate(model)
    assign(*map(list, zip(*chosen, strict=True)))
    done = f"weights and optimizer go back to {saved.name}"
    if learning_rate_factor == 1.0:
        return done
    if rate is None:
        return f"{done}; a schedule sets the learning rate, which stays"
    model.optimizer.learning_rate = rate * learning_rate_factor
    return f"{done}, learning rate {rate * learning_rate_factor:.3g}"


def _learning_rate(model: keras.Model) -> float | None:
    optimizer = model.optimizer
    while isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        optimizer = optimizer.inner_optimizer
    rate = optimizer.get_config().get("learning_rate")
    return float(rate) if isinstance(rate, (int, float)) else None
