"""Benchmarks that run queries on every store and compare what each takes and returns."""
