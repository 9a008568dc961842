"""For tests of users: keyed functions in plain Python; and made checkpoints, for the demo."""
