"""Build hook: a wheel or an sdist without the shim jars of its own version is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class JarHook(BuildHookInterface[Any]):
    """Checks that the jars stand where wheel and sdist take them from."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002 (interface)
        """Refuse to go on without a jar for each Spark; an editable install needs none.

        Raises:
            RuntimeError: A jar is not there, or jars of other versions stand beside them.
        """
        if version == "editable":
            return
        jars = sorted(path.name for path in Path(self.root, "statestore", "jars").glob("*.jar"))
        releases = Path(self.root, "jvm-shim", "spark-releases.txt").read_text().splitlines()
        minors = [newest.rpartition(".")[0] for _, newest in map(str.split, releases)]
        version = self.metadata.version
        needed = [f"statestore-shim_2.13-spark{minor}-{version}.jar" for minor in minors]
        if jars != needed:
            raise RuntimeError(
                f"the {self.target_name} needs a jar for each Spark, of its own version: "
                f"found={jars}, needed={needed}. To fix: ./build.sh wheel"
            )
