"""What programs and the command line use: Checkpoint and Savepoint."""
