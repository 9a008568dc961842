"""Trials: new code on a branch of real state, compared with the old, promoted or dropped."""
