"""The engine process: serves the shim's calls over py4j. Nothing else imports py4j."""

PROTOCOL_VERSION = 1
"""Version of docs/protocol.md; shim and engine compare theirs before the first call."""
