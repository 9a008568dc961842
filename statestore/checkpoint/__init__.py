"""Versions of one store as files: where they lie, how they are made, restored and expired."""
