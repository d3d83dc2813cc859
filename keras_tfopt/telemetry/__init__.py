"""What a training tells of itself: one catalogue, one sampler."""
