"""build.sh ends early, in one line that says what to do, where what it needs is missing."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
COMMANDS = ("bash", "cat", "cksum", "dirname", "sed")
JAVA = "#!/bin/sh\necho 'openjdk version \"{}\"' >&2\n"
PYTHON = f'#!/bin/sh\nexec {sys.executable} -c "import sys; {{}}; exec(sys.argv[1])" "$2"\n'
NO_PYTHON = "no Python >= 3.11 with its venv module found"


@pytest.mark.parametrize(
    ("programs", "environment", "expected"),
    [
        pytest.param({}, {}, "no Java found: command=java.", id="no-java"),
        pytest.param(
            {"java": JAVA.format("17.0.12")},
            {"JAVA_HOME": "/nonexistent"},
            "no Java found: command=/nonexistent/bin/java.",
            id="java-home-leads-nowhere",
        ),
        pytest.param(
            {"java": JAVA.format("11.0.2")},
            {},
            "Java is too old: command=java, version=11.0.2.",
            id="java-11",
        ),
        pytest.param({"java": JAVA.format("1.8.0_412")}, {}, "version=1.8.0_412.", id="java-8"),
        pytest.param({"java": JAVA.format("17-ea")}, {}, NO_PYTHON, id="no-python"),
        pytest.param(
            {
                "java": JAVA.format("21.0.4"),
                "python3": PYTHON.format("sys.version_info = (3, 10, 14)"),
            },
            {},
            NO_PYTHON,
            id="python-3.10",
        ),
        pytest.param(
            {
                "java": JAVA.format("21.0.4"),
                "python3.11": PYTHON.format("sys.modules['ensurepip'] = None"),
            },
            {},
            NO_PYTHON,
            id="python-without-venv",
        ),
        pytest.param(
            {"java": JAVA.format("21.0.4")},
            {"PYTHON": "/nonexistent/python3"},
            NO_PYTHON,
            id="python-leads-nowhere",
        ),
    ],
)
def test_setup_says_what_is_missing(
    programs: dict[str, str], environment: dict[str, str], expected: str, tmp_path: Path
) -> None:
    """Catches a set-up that dies of its first unknown command, or half way, and says nothing."""
    checkout, path = tmp_path / "checkout", tmp_path / "bin"
    checkout.mkdir()
    path.mkdir()
    for name in ("build.sh", "constraints.txt", "pyproject.toml"):
        shutil.copy(ROOT / name, checkout)
    for name in COMMANDS:
        (path / name).symlink_to(str(shutil.which(name)))
    for name, text in programs.items():
        (path / name).write_text(text)
        (path / name).chmod(0o755)

    done = subprocess.run(
        [path / "bash", checkout / "build.sh", "setup"],
        env={"PATH": str(path), **environment},
        capture_output=True,
        text=True,
        check=False,
    )

    (line,) = done.stderr.splitlines()
    assert done.returncode == 1
    assert line.startswith("build.sh: ")
    assert expected in line
    assert ". To fix: install" in line
    assert done.stdout == ""
    assert not (checkout / ".venv").exists()


def test_environment_that_was_not_finished_is_made_anew(tmp_path: Path) -> None:
    """Catches a first run that was interrupted, and every later one that dies of it."""
    checkout, path = tmp_path / "checkout", tmp_path / "bin"
    (checkout / ".venv" / "bin").mkdir(parents=True)
    path.mkdir()
    for name in ("build.sh", "constraints.txt", "pyproject.toml"):
        shutil.copy(ROOT / name, checkout)
    for name in (*COMMANDS, "rm"):
        (path / name).symlink_to(str(shutil.which(name)))
    home = tmp_path / "java"
    (home / "bin").mkdir(parents=True)
    made = path / "python3"
    for program, text in (
        (home / "bin" / "java", JAVA.format("21.0.4")),
        (checkout / ".venv" / "bin" / "python", PYTHON.format("sys.modules['pip'] = None")),
        # Finds what is wanted of it, and then is asked for the environment.
        (made, '#!/bin/sh\ncase "$*" in *venv*.venv) command -v java; exit 7 ;; esac\n'),
    ):
        program.write_text(text)
        program.chmod(0o755)

    done = subprocess.run(
        [path / "bash", checkout / "build.sh", "setup"],
        env={"PATH": str(path), "JAVA_HOME": str(home)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 7, done.stderr
    assert done.stdout == f"{home}/bin/java\n"  # as what is started by its name finds it
    assert not (checkout / ".venv").exists()


def test_environment_stays_where_python_names_one_that_cannot_be_used(tmp_path: Path) -> None:
    """Catches an environment that is deleted at each command, for a PYTHON of another program."""
    checkout = tmp_path / "checkout"
    bin_of_venv, path = checkout / ".venv" / "bin", tmp_path / "bin"
    bin_of_venv.mkdir(parents=True)
    path.mkdir()
    for name in ("build.sh", "constraints.txt", "pyproject.toml"):
        shutil.copy(ROOT / name, checkout)
    for name in COMMANDS:
        (path / name).symlink_to(str(shutil.which(name)))
    for program, text in (
        (path / "java", JAVA.format("21.0.4")),
        (path / "old", PYTHON.format("sys.version_info = (3, 10, 14)")),
        (bin_of_venv / "python", "#!/bin/sh\n"),
    ):
        program.write_text(text)
        program.chmod(0o755)
    pins = (checkout / "constraints.txt").read_bytes() + (checkout / "pyproject.toml").read_bytes()
    stamp = subprocess.run(["cksum"], input=pins, capture_output=True, check=True).stdout
    (checkout / ".venv" / "stamp").write_bytes(stamp)

    done = subprocess.run(
        [path / "bash", checkout / "build.sh", "setup"],
        env={"PATH": str(path), "PYTHON": str(path / "old")},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert (checkout / ".venv" / "stamp").read_bytes() == stamp
