"""Build hook: a wheel without the shim jar of its own version is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class JarHook(BuildHookInterface[Any]):
    """Checks that the jar stands where the wheel takes it from."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002 (interface)
        """Refuse a wheel without its jar; an editable install needs none.

        Raises:
            RuntimeError: The jar is not there, or jars of other versions stand beside it.
        """
        if version == "editable":
            return
        jars = sorted(path.name for path in Path(self.root, "statestore", "jars").glob("*.jar"))
        suffix = f"-{self.metadata.version}.jar"
        if len(jars) != 1 or not jars[0].endswith(suffix):
            raise RuntimeError(
                "the wheel needs one jar, of its own version: "
                f"found={jars}, expected_suffix={suffix!r}. To fix: ./build.sh wheel"
            )
