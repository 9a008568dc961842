"""Benchmarks of the state store providers: Spark's own and this project's, in one run."""
