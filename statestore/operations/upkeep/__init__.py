"""Lists, verifies, repairs, compacts and expires the versions of a checkpoint."""
