"""Lists, verifies, repairs and expires the versions of a checkpoint."""
