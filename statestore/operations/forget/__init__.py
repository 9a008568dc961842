"""Forget: keys that leave every file of a checkpoint, and the proof that they have."""
