"""Files of Spark's own state store providers: read, never written."""
