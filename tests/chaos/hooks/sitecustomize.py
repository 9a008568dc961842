"""Imported by every Python of a chaos job at its start; changes engines only.

    <STATESTORE_CHAOS>/clock-<pid>    milliseconds by which that engine's clock is off

STATESTORE_CHAOS_BUG plants one of the bugs that the audit must find: `answers-first`,
`ignores-delta`, `age-alone`.
"""

import os
import sys

if "statestore.engine" in sys.orig_argv:
    import time
    from pathlib import Path

    from statestore.core import clock

    _offset = Path(os.environ["STATESTORE_CHAOS"], f"clock-{os.getpid()}")

    def _now_ms(_self):
        try:
            offset_ms = int(_offset.read_text() or 0)
        except OSError:
            offset_ms = 0
        return time.time_ns() // 1_000_000 + offset_ms

    clock.SystemClock.now_ms = _now_ms  # type: ignore[method-assign]

    if os.environ.get("STATESTORE_CHAOS_BUG"):
        sys.path.append(str(Path(__file__).parents[3]))
        from tests.chaos import planted_bugs

        planted_bugs.plant(os.environ["STATESTORE_CHAOS_BUG"])
