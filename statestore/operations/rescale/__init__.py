"""Changes the number of state partitions of a checkpoint, and undoes it."""
