"""Storage behind one protocol, `FileIO`; the layers above assume no rename, no append, no hot listing."""
