"""Runs that compare ways to train the same network."""
