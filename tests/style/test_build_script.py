"""build.sh ends early, in one line that says what to do, where what it needs is missing."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
COMMANDS = ("bash", "cat", "cksum", "dirname", "rm", "sed")
JAVA = "#!/bin/sh\necho 'openjdk version \"{}\"' >&2\n"
PYTHON = f'#!/bin/sh\nexec {sys.executable} -c "import sys; {{}}; exec(sys.argv[1])" "$2"\n'
NO_PYTHON = "no Python >= 3.11 with its venv module found"


def set_up(
    root: Path, programs: dict[str, str], environment: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    """Run `build.sh setup` in `checkout`, where PATH has `bin`; programs by their paths."""
    checkout, path = root / "checkout", root / "bin"
    for folder in (checkout, path):
        folder.mkdir(exist_ok=True)
    for name in ("build.sh", "constraints.txt", "pyproject.toml"):
        shutil.copy(ROOT / name, checkout)
    for name in COMMANDS:
        (path / name).symlink_to(str(shutil.which(name)))
    for name, text in programs.items():
        program = root / name
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text(text)
        program.chmod(0o755)
    return subprocess.run(
        [path / "bash", checkout / "build.sh", "setup"],
        env={"PATH": str(path), **environment},
        capture_output=True,
        text=True,
        check=False,
    )


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
    done = set_up(tmp_path, {f"bin/{name}": text for name, text in programs.items()}, environment)

    (line,) = done.stderr.splitlines()
    assert done.returncode == 1
    assert line.startswith("build.sh: ")
    assert expected in line
    assert ". To fix: install" in line
    assert done.stdout == ""
    assert not (tmp_path / "checkout" / ".venv").exists()


def test_environment_that_was_not_finished_is_made_anew(tmp_path: Path) -> None:
    """Catches a first run that was interrupted, and every later one that dies of it."""
    programs = {
        "java/bin/java": JAVA.format("21.0.4"),
        "checkout/.venv/bin/python": PYTHON.format("sys.modules['pip'] = None"),
        # Finds what is wanted of it, and then is asked for the environment.
        "bin/python3": '#!/bin/sh\ncase "$*" in *venv*.venv) command -v java; exit 7 ;; esac\n',
    }

    done = set_up(tmp_path, programs, {"JAVA_HOME": f"{tmp_path}/java"})

    assert done.returncode == 7, done.stderr
    # As what is started by its name finds it.
    assert done.stdout == f"{tmp_path}/java/bin/java\n"
    assert not (tmp_path / "checkout" / ".venv").exists()


def test_environment_stays_where_python_names_one_that_cannot_be_used(tmp_path: Path) -> None:
    """Catches an environment that is deleted at each command, for a PYTHON of another program."""
    programs = {
        "bin/java": JAVA.format("21.0.4"),
        "bin/old": PYTHON.format("sys.version_info = (3, 10, 14)"),
        "checkout/.venv/bin/python": "#!/bin/sh\n",
    }
    pins = (ROOT / "constraints.txt").read_bytes() + (ROOT / "pyproject.toml").read_bytes()
    made = subprocess.run(["cksum"], input=pins, capture_output=True, check=True).stdout
    stamp = tmp_path / "checkout" / ".venv" / "stamp"
    stamp.parent.mkdir(parents=True)
    stamp.write_bytes(made)

    done = set_up(tmp_path, programs, {"PYTHON": f"{tmp_path}/bin/old"})

    assert done.returncode == 0, done.stderr
    assert stamp.read_bytes() == made
