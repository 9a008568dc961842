"""What `statestore doctor` checks: everything that a query needs, each with the real thing."""

from __future__ import annotations

import json
import os
import re
import secrets
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from statestore.cli.storage_probe import StorageProbe
from statestore.core.clock import SystemClock
from statestore.core.errors import (
    CorruptionError,
    IncompatibleError,
    NotFoundError,
    ProtocolError,
    StateStoreError,
)
from statestore.core.options import StateStoreOptions
from statestore.core.providers import IN_LOCAL_DATABASE, PROVIDER_KEY, PROVIDERS, REAL_TIME_KEY
from statestore.core.version import MIN_PYTHON, OLDEST, SPARK_MINORS, __version__, is_too_old
from statestore.engine.client import EngineGoneError, EngineProcess, EngineRefusedError
from statestore.io.local import temporary_directory
from statestore.io.shim_jar import JAR_VARIABLE, find_jar, require_fit
from statestore.io.spark_home import find_spark_release, read_spark_defaults, require_own_spark
from statestore.io.storage import is_hadoop, scheme_of

MIN_JAVA = 17
PYTHON_VARIABLE = "PYSPARK_PYTHON"
PYTHON_KEY = "spark.pyspark.python"
_RANGE = f"{SPARK_MINORS[0]} to {SPARK_MINORS[-1]}"
_TIMEOUT_S = 120.0
_PACKAGES = {"pyarrow": "pyarrow", "numpy": "numpy", "google_crc32c": "google-crc32c"}
"""Modules that every engine imports, each with its name for pip."""
_PACKAGES_OF_WORKERS = {"pandas": "pandas", "google.protobuf": "protobuf"}
"""Modules that Spark's Python workers import beside those for `transformWithState`, likewise."""
_IN_JAR = ("statestore-python/", "statestore-py4j/")
"""Directories of a jar for its engines: the package, and py4j."""
_IMPORT = """
import importlib, json, sys
def version_of(module, package):
    if hasattr(module, "__version__"):
        return module.__version__
    try:
        from importlib import metadata
        return metadata.version(package)
    except ImportError:
        return ""
found = {}
for name, package in json.loads(sys.argv[1]).items():
    try:
        module = importlib.import_module(name)
        found[name] = {
            "version": version_of(module, package),
            "file": module.__file__,
            "implementation": getattr(module, "implementation", ""),
        }
    except Exception as error:
        found[name] = {"error": f"{type(error).__name__}: {error}"}
print(json.dumps({"python": sys.version_info[:3], "modules": found}))
"""
"""Runs in any Python, also in one that is too old: there is no importlib.metadata before 3.8."""


@dataclass(frozen=True, slots=True)
class Check:
    """The outcome of one check.

    Attributes:
        name: What was checked.
        status: `skip` when it could not be tried, because of a check that failed, or when what is
            missing is needed by some queries only.
        detail: What was found.
        to_fix: What the reader should do; "" when there is nothing to do.
    """

    name: str
    status: Literal["ok", "fail", "skip"]
    detail: str
    to_fix: str = ""


class Diagnosis:
    """The checks of one machine, for one state backend and storage.

    Args:
        backend: heap, filesystem or rocksdb; None where nobody says it: what a backend alone needs
            is checked then and does not fail.
        storage: URI of the directory where state or checkpoints are to be; None where there is
            nothing to check.
        python: The Python that engines run in; what PYSPARK_PYTHON names, or this one, when None.
        options: How the storage is reached.
    """

    def __init__(
        self,
        backend: str | None,
        storage: str | None,
        python: str | None,
        options: StateStoreOptions,
    ) -> None:
        self._storage = storage
        self._options = options
        self._clock = SystemClock()
        self._failed: set[str] = set()
        self._python, self._python_from = _choose_python(python)
        self._packages = dict(_PACKAGES)
        self._is_backend_known = backend is not None
        if backend in IN_LOCAL_DATABASE:
            self._packages["rocksdict"] = "rocksdict"
        if storage is not None and scheme_of(storage) == "s3":
            self._packages["boto3"] = "boto3"
        self._pyspark = Path()

    def run(self) -> Iterator[Check]:
        """Yield every check once it is done; raises nothing that a check is about."""
        yield self._check("java", check_java)
        yield self._check("spark", self._check_spark)
        yield self._check("jar", check_jar)
        yield self._check("fit", check_fit, needs=("jar",))
        yield from self._run_without_spark()

    def run_on_executor(self, jar: str | None) -> Iterator[Check]:
        """Yield the checks that make sense where Spark runs already, likewise.

        Args:
            jar: The jar that the executor was given; None where it was given none.
        """

        def check() -> str:
            if jar is None:
                raise NotFoundError(
                    "the executor was given no jar of the shim",
                    kind="file-not-found",
                    to_fix="name it by --jars or spark.jars, as the query does",
                )
            os.environ[JAR_VARIABLE] = jar
            return check_jar()

        yield self._check("jar", check)
        yield from self._run_without_spark()

    def _run_without_spark(self) -> Iterator[Check]:
        yield self._check("python", self._check_python)
        if not self._is_backend_known:
            yield self._check_rocksdb()
        yield self._check_workers()
        yield self._check("engine", self._check_engine, needs=("fit", "python"))
        if self._storage is None:
            return
        needed = ("java", "spark", "fit") if is_hadoop(self._storage) else ()
        with (
            temporary_directory() as fetched,
            StorageProbe(self._storage, self._options, self._clock, fetched) as probe,
        ):
            for step in probe.steps:
                yield self._check(f"storage {step.name}", step.run, needs=(*needed, *step.needs))

    def _check(self, name: str, check: Callable[[], str], needs: tuple[str, ...] = ()) -> Check:
        missing = [need for need in needs if need in self._failed]
        if missing:
            self._failed.add(name)
            return Check(name, "skip", f"not tried: needs {', '.join(missing)}")
        try:
            return Check(name, "ok", check())
        except StateStoreError as error:
            self._failed.add(name)
            values = ", ".join(f"{field}={value!r}" for field, value in error.fields.items())
            detail = f"{error.problem}: {values}" if values else error.problem
            return Check(name, "fail", detail, error.to_fix)
        except OSError as error:
            self._failed.add(name)
            return Check(name, "fail", str(error), "correct the path, or what may be done with it")

    def _check_spark(self) -> str:
        """The pyspark of this Python."""
        fix = f"pip install 'statestore[spark]', which takes pyspark {_RANGE}"
        modules = _import(sys.executable, "this command", {"pyspark": "pyspark"})["modules"]
        found = modules["pyspark"]
        if "error" in found:
            raise NotFoundError(
                "pyspark cannot be imported",
                python=sys.executable,
                error=found["error"],
                to_fix=fix,
            )
        self._pyspark = Path(found["file"]).parent
        require_own_spark(found["version"])
        return f"pyspark {found['version']}, {self._pyspark}"

    def _check_python(self) -> str:
        """The packages of the Python that engines run in."""
        found = _import(self._python, self._python_from, self._packages)
        version = ".".join(map(str, found["python"]))
        if tuple(found["python"]) < MIN_PYTHON:
            raise IncompatibleError(
                "the Python of the engines is too old",
                python=self._python,
                version=version,
                to_fix=f"name one of {'.'.join(map(str, MIN_PYTHON))} or later by "
                f"{PYTHON_VARIABLE} or spark.pyspark.python",
            )
        modules = found["modules"]
        missing = {name: modules[name]["error"] for name in modules if "error" in modules[name]}
        if missing:
            names = " ".join(self._packages[name] for name in missing)
            raise NotFoundError(
                "packages that an engine imports are missing",
                python=self._python,
                version=version,
                errors="; ".join(missing.values()),
                to_fix=f"{self._python} -m pip install {names}, on every executor",
            )
        self._require_recent("an engine imports", self._packages, modules)
        if modules["google_crc32c"]["implementation"] == "python":
            raise IncompatibleError(
                "google-crc32c is without its C extension, checksums take a thousand times as long",
                python=self._python,
                found=modules["google_crc32c"]["file"],
                to_fix=f"{self._python} -m pip install --force-reinstall --only-binary :all: "
                "google-crc32c, on every executor; where there is no wheel for that Python, name "
                f"another one by {PYTHON_VARIABLE} or spark.pyspark.python",
            )
        packages = ", ".join(f"{name} {modules[name]['version']}".rstrip() for name in modules)
        return f"{version} with {packages}, {self._python} from {self._python_from}"

    def _check_rocksdb(self) -> Check:
        """The package that only the rocksdb backend needs, where no backend was named."""
        return self._check_optional("rocksdb", {"rocksdict": "rocksdict"}, "the rocksdb backend")

    def _check_workers(self) -> Check:
        """The packages that `transformWithState` in Python needs; no other query does."""
        needed_by = "transformWithState in Python"
        return self._check_optional("transformWithState", _PACKAGES_OF_WORKERS, needed_by)

    def _check_optional(self, name: str, packages: dict[str, str], needed_by: str) -> Check:
        """Check for packages that few queries need: no failure where they are missing."""
        done = self._check(name, lambda: self._find(packages, needed_by), needs=("python",))
        return replace(done, status="skip") if done.status == "fail" else done

    def _find(self, packages: dict[str, str], needed_by: str) -> str:
        modules = _import(self._python, self._python_from, packages)["modules"]
        missing = [package for name, package in packages.items() if "error" in modules[name]]
        if missing:
            raise NotFoundError(
                f"packages that only {needed_by} needs are missing",
                packages=", ".join(missing),
                to_fix=f"{self._python} -m pip install {' '.join(missing)}, on every executor, for "
                "such a query",
            )
        self._require_recent(f"only {needed_by} needs", packages, modules)
        return ", ".join(
            f"{package} {modules[name]['version']}".rstrip() for name, package in packages.items()
        )

    def _require_recent(
        self, wanted_by: str, packages: dict[str, str], modules: dict[str, dict[str, str]]
    ) -> None:
        old = [name for name in modules if is_too_old(name, modules[name]["version"])]
        if old:
            wanted = " ".join(f"'{packages[name]}>={OLDEST[name]}'" for name in old)
            raise IncompatibleError(
                f"packages that {wanted_by} are too old",
                python=self._python,
                found=", ".join(f"{name} {modules[name]['version']}" for name in old),
                to_fix=f"{self._python} -m pip install {wanted}, on every executor",
            )

    def _check_engine(self) -> str:
        """A real engine: the package and py4j of the jar, the Python of the engines."""
        with temporary_directory() as directory:
            with zipfile.ZipFile(find_jar()) as jar:
                members = [name for name in jar.namelist() if name.startswith(_IN_JAR)]
                jar.extractall(directory, members)
            paths = [f"{directory}/{folder}" for folder in _IN_JAR]
            environment = {**os.environ, "PYTHONSAFEPATH": "1"}
            for variable in ("PYTHONPATH", "PEX_EXTRA_SYS_PATH"):
                inherited = filter(None, [os.environ.get(variable)])
                environment[variable] = os.pathsep.join([*paths, *inherited])
            return self._start_engine(directory, environment)

    def _start_engine(self, directory: str, environment: dict[str, str]) -> str:
        started = self._clock.elapsed_ms()
        with Path(directory, "stderr").open("w+b") as stderr:
            try:
                with EngineProcess(
                    [self._python, "-m", "statestore.engine"],
                    f"{directory}/statestore-scratch-doctor",
                    token=secrets.token_hex(32),
                    environment=environment,
                    stderr=stderr,
                    start_timeout_s=_TIMEOUT_S,
                ) as engine:
                    ready_ms = self._clock.elapsed_ms() - started
                    engine.call("status")
                    engine.end_stdin(_TIMEOUT_S)
            except (
                EngineRefusedError,
                EngineGoneError,
                AssertionError,
                OSError,
                subprocess.TimeoutExpired,
            ) as error:
                stderr.seek(0)
                lines = stderr.read().decode(errors="replace").splitlines()
                raise ProtocolError(
                    "an engine does not start, answer and end",
                    python=self._python,
                    error=str(error),
                    stderr=lines[-1] if lines else "",
                    to_fix="run the command `statestore doctor` on the executor's machine, and "
                    "check that a process may listen on 127.0.0.1",
                ) from error
        return f"ready after {ready_ms:.0f} ms, answered a call, ended with its stdin"


def check_java() -> str:
    """Return the Java that Spark would start: of JAVA_HOME, or else of PATH.

    Raises:
        NotFoundError, IncompatibleError: There is none, or it is too old.
    """
    home = os.environ.get("JAVA_HOME")
    command, origin = (f"{home}/bin/java", "JAVA_HOME") if home else ("java", "PATH")
    fix = f"install Java {MIN_JAVA} or newer, and name it by JAVA_HOME or have it on PATH"
    try:
        done = subprocess.run(
            [command, "-version"], capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotFoundError(
            "java cannot be run", command=command, found_by=origin, error=str(error), to_fix=fix
        ) from error
    version = re.search(r'version "((\d+)[^"]*)"', done.stderr + done.stdout)
    if version is None or done.returncode != 0:
        raise NotFoundError(
            "java does not say its version",
            command=command,
            found_by=origin,
            exit_code=done.returncode,
            to_fix=fix,
        )
    if int(version[2]) < MIN_JAVA:
        raise IncompatibleError(
            "Java is too old", command=command, found_by=origin, version=version[1], to_fix=fix
        )
    return f"{version[1]}, {command} from {origin}"


def check_jar() -> str:
    """Return the jar, its version, and the Spark that it is for.

    Raises:
        NotFoundError, CorruptionError, IncompatibleError: It is not there, not a jar of the shim,
            of another version, or for another Spark.
    """
    jar = find_jar()
    fix = f"install the wheel of statestore anew, or correct or unset {JAR_VARIABLE}"
    try:
        with zipfile.ZipFile(jar) as archive:
            version = archive.read("io/statestore/version").decode().strip()
        oldest = _read_spark(jar)
    except (zipfile.BadZipFile, KeyError, OSError) as error:
        raise CorruptionError(
            "the file is not a jar of the shim", path=str(jar), error=str(error), to_fix=fix
        ) from error
    if version != __version__:
        raise IncompatibleError(
            "jar and package are of different versions",
            kind="version-apart",
            jar=version,
            package=__version__,
            path=str(jar),
            to_fix=fix,
        )
    spark = oldest.rpartition(".")[0]
    release = find_spark_release() or oldest
    installed, _, patch = release.rpartition(".")
    if installed not in SPARK_MINORS:
        return f"{version} for Spark {spark}, nearest to {release}, {jar}"
    if spark != installed:
        raise IncompatibleError(
            "the jar is for another Spark",
            kind="wrong-spark",
            jar=spark,
            spark=installed,
            path=str(jar),
            to_fix=f"use the jar that `statestore jar --spark {installed}` prints",
        )
    if int(patch) < int(oldest.rpartition(".")[2]):
        raise IncompatibleError(
            "this patch release of Spark lacks what the jar needs",
            kind="wrong-spark",
            spark=release,
            oldest=oldest,
            path=str(jar),
            to_fix=f"use Spark {oldest} or a later {spark}",
        )
    return f"{version} for Spark {oldest} and later {spark}, {jar}"


def check_fit() -> str:
    """Return that the Spark has all that the jar names, whatever the Spark's version says.

    Raises:
        IncompatibleError: Something is missing: the build of a vendor may lack it.
    """
    jar = find_jar()
    jars = require_fit(jar, _read_spark(jar).rpartition(".")[0])
    return f"all that the jar names is in the {len(jars)} jars of {jars[0].parent}"


def _read_spark(jar: Path) -> str:
    """Return the oldest release of the Spark that a jar is for."""
    with zipfile.ZipFile(jar) as archive:
        return archive.read("io/statestore/spark").decode().strip()


def _choose_python(named: str | None) -> tuple[str, str]:
    """Return a Python, and where its name comes from."""
    if named:
        return named, "--python"
    path, defaults = read_spark_defaults()
    if PYTHON_KEY in defaults:
        return defaults[PYTHON_KEY], str(path)
    variable = os.environ.get(PYTHON_VARIABLE)
    return (variable, PYTHON_VARIABLE) if variable else (sys.executable, "this command")


def find_backend() -> tuple[str, str] | None:
    """Return the state backend of sessions that say nothing else, and the file that says it."""
    path, defaults = read_spark_defaults()
    provider = defaults.get(PROVIDER_KEY) or defaults.get(REAL_TIME_KEY)
    return next(((name, str(path)) for name, of in PROVIDERS.items() if of == provider), None)


def _import(python: str, origin: str, packages: dict[str, str]) -> dict[str, Any]:
    """Import modules in another Python; return its version, and version or error of each.

    Args:
        python: The Python.
        origin: Where its name comes from.
        packages: Names for pip, by module.
    """
    try:
        done = subprocess.run(
            [python, "-c", _IMPORT, json.dumps(packages)],
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=True,
            env={**os.environ, "PYTHONSAFEPATH": "1"},
        )
        return dict(json.loads(done.stdout.splitlines()[-1]))
    except (OSError, subprocess.SubprocessError, ValueError, IndexError) as error:
        raise NotFoundError(
            "a Python cannot be run",
            python=python,
            found_by=origin,
            error=str(error).splitlines()[0][:200],
            to_fix=f"name another one by --python or {PYTHON_VARIABLE}; on executors by "
            "spark.pyspark.python",
        ) from error
