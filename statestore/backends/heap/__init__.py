"""The heap backend: versions in the memory of the driver, gone with it."""
