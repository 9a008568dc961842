"""For tests, the package's own and those of its users: faults, crashes, models, an engine client."""
