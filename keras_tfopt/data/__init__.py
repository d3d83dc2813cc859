"""Where a training run is in its data."""
