"""Spark's own state store providers: what they wrote is read, never written."""
