"""One of several workers: trains, and writes what became of it."""

import json
import sys

from keras_tfopt import distribution


def main(result: str) -> None:
    # Before anything that starts TensorFlow.
    chosen = distribution.strategy(communication="ring", timeout_seconds=120)

    import keras

    from keras_tfopt import AccumModel
    from tests import models

    keras.utils.set_random_seed(0)
    with chosen.scope():
        model = models.regressor(AccumModel)
    x, y = models.X[:24], models.Y[:24]
    history = models.fit(
        model,
        x,
        y,
        batch_size=8,
        validation_data=(x, y),
    )
    outputs = model.predict(x, batch_size=8, verbose=0)
    with open(result, "w", encoding="utf-8") as file:
        json.dump(
            {
                "name": chosen.name,
                "replicas": chosen.strategy.num_replicas_in_sync,
                "history": history.history,
                "outputs": outputs.tolist(),
                "weights": [weight.tolist() for weight in model.get_weights()],
            },
            file,
        )


if __name__ == "__main__":
    main(sys.argv[1])
