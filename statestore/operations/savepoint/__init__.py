"""Savepoints, and the checkpoints made of savepoints and of other checkpoints."""
