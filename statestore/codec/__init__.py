"""The bytes of state files: trailer, Arrow stream, rows. Knows local paths and buffers, no storage."""
