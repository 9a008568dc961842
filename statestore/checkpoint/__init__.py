"""Versions of one store as files: where they lie, how they are committed, restored, merged, expired."""
