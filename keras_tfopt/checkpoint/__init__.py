"""The full state of a training run, on disk and back."""
