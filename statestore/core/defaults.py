"""Defaults that functions and commands share."""

from __future__ import annotations

SAVEPOINTS_KEPT = 5
"""Retained savepoints that stay, the newest."""
BATCHES_REPEATED = 5
"""Batches that new code repeats, the newest."""
