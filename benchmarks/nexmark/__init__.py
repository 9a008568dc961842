"""Nexmark, the auction benchmark of stream processors, for Spark Structured Streaming."""
