"""Pages to look at: what a checkpoint holds, what is slow, skewed or damaged in it, what to do."""
