"""What programs and the command line use: Checkpoint, Savepoint and their plans."""
