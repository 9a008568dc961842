"""Command line: `statestore`."""
