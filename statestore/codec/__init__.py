"""The bytes of state files: trailer, Arrow stream, rows. Knows local paths, no storage."""
