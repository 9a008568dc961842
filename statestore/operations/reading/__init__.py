"""Reads rows of a version, without Spark."""
