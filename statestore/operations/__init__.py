"""What is done to a checkpoint from outside of its query, without Spark."""
