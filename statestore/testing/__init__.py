"""For tests, ours and those of users: faults, crashes, models, an engine client."""
