"""The filesystem backend: immutable sorted runs, shared by versions, mapped from files."""
