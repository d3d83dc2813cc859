"""A generative adversarial network with a `train_step` of its own."""

import keras
import numpy as np
from sklearn import datasets
import tensorflow as tf

from keras_tfopt import callbacks as tfopt

LATENT = 8


class GAN(keras.Model):
    """Trains a generator and a discriminator against each other."""

    def __init__(self):
        """Builds both networks."""
        super().__init__()
        dense = keras.layers.Dense
        self.generator = keras.Sequential(
            [keras.Input((LATENT,)), dense(32, "relu"), dense(64, "sigmoid")]
        )
        self.discriminator = keras.Sequential(
            [keras.Input((64,)), dense(32, "relu"), dense(1)]
        )
        self.seeds = keras.random.SeedGenerator(0)
        self.loss = keras.losses.BinaryCrossentropy(from_logits=True)
        self.d_loss = keras.metrics.Mean(name="d_loss")
        self.g_loss = keras.metrics.Mean(name="g_loss")

    def compile(self, d_optimizer, g_optimizer):
        """Takes one optimizer for each network."""
        super().compile(optimizer=g_optimizer)
        self.d_optimizer = d_optimizer
        d_optimizer.build(self.discriminator.trainable_variables)
        g_optimizer.build(self.generator.trainable_variables)

    def train_step(self, images):
        """Updates the discriminator, then the generator."""
        rows = tf.shape(images)[0]
        noise = keras.random.normal((rows, LATENT), seed=self.seeds)
        ones, zeros = tf.ones((rows, 1)), tf.zeros((rows, 1))
        with tf.GradientTape() as tape:
            real = self.discriminator(images, training=True)
            fake = self.discriminator(self.generator(noise), training=True)
            d_loss = self.loss(ones, real) + self.loss(zeros, fake)
        weights = self.discriminator.trainable_variables
        self.d_optimizer.apply(tape.gradient(d_loss, weights), weights)
        with tf.GradientTape() as tape:
            made = self.generator(noise, training=True)
            g_loss = self.loss(ones, self.discriminator(made))
        weights = self.generator.trainable_variables
        self.optimizer.apply(tape.gradient(g_loss, weights), weights)
        self.d_loss.update_state(d_loss)
        self.g_loss.update_state(g_loss)
        return {"d_loss": self.d_loss.result(), "g_loss": self.g_loss.result()}


def main(epochs=3):
    """Trains and returns the model and its history."""
    keras.utils.set_random_seed(0)
    images = (datasets.load_digits().data / 16).astype(np.float32)
    model = GAN()
    model.compile(keras.optimizers.Adam(1e-3), keras.optimizers.Adam(1e-3))
    callbacks = [
        keras.callbacks.TerminateOnNaN(),
        tfopt.OOMRecovery(half_batches=True),
        tfopt.BackupAndRestore("backup", save_freq="10m"),
    ]
    history = model.fit(
        images, batch_size=256, epochs=epochs, callbacks=callbacks, verbose=2
    )
    return model, history.history


if __name__ == "__main__":
    main()
