"""ShuffleBench, which sends records to consumers with state, for Spark Structured Streaming."""
