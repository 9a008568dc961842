"""State stores from Python, without Spark: open one at a version, read, apply a batch, commit."""
