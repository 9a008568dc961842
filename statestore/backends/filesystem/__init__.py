"""The filesystem backend: immutable sorted runs, shared between versions, mapped from state files."""
