"""State backend whose working state is in RocksDB on local disk; durable files are SSTs."""
