"""Storage behind one protocol, `FileIO`; nothing above assumes rename, append or hot listing."""
