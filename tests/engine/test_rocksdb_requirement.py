"""Without rocksdict the rocksdb backend says so, the same way every time."""

import os
import subprocess
import sys

import pytest

import statestore
from statestore.core.errors import InvalidArgumentError
from statestore.io.shim_jar import JAR_VARIABLE

HIDDEN = """
import importlib.abc, sys, time

class Hidden(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == "rocksdict":
            time.sleep(0.02)
            raise ModuleNotFoundError("No module named 'rocksdict'", name="rocksdict")

sys.meta_path.insert(0, Hidden())
"""
LOADS = """
import json, sys, threading
from statestore.engine.service import EngineService

engine = EngineService(sys.argv[1])
store = {"root": f"{sys.argv[1]}/state", "operator": 0, "partition": 0, "name": "default"}
request = {"op": "load", "store": store, "backend": "rocksdb", "checkpoint_format": 1,
           "options": {}, "version": 0, "provider": "p"}
found = []

def load():
    found.append(json.loads(engine.call(json.dumps(request)))["error"])

for _ in range(8):
    threads = [threading.Thread(target=load) for _ in range(8)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
kinds = {(one["kind"], *map(one["fields"].get, ("missing", "found"))) for one in found}
print(json.dumps([len(found), sorted(kinds)]))
"""


def test_missing_rocksdict_is_named_when_many_stores_load_at_once(tmp_path):
    """Catches `cannot import name 'Memory'`, kind internal: a module that is half imported."""
    done = subprocess.run(
        [sys.executable, "-c", HIDDEN + LOADS, str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
    )

    assert done.stdout.strip() == '[64, [["invalid-argument", "rocksdict", null]]]'


def test_old_rocksdict_is_named(tmp_path):
    """Catches an error of rocksdict's own, kind internal, that does not say to install another."""
    installed = tmp_path / "installed" / "rocksdict-0.3.9.dist-info"
    installed.mkdir(parents=True)
    (installed / "METADATA").write_text("Name: rocksdict\nVersion: 0.3.9\n")
    path = os.pathsep.join([str(installed.parent), *sys.path])

    done = subprocess.run(
        [sys.executable, "-c", LOADS, str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": path},
    )

    assert done.stdout.strip() == '[64, [["invalid-argument", null, "0.3.9"]]]'


@pytest.mark.parametrize(
    ("conf", "python", "is_refused"),
    [
        ({"spark.master": "local[2]"}, sys.executable, True),
        ({}, sys.executable, True),
        ({"spark.master": "yarn"}, sys.executable, False),
        ({"spark.pyspark.python": "/elsewhere/python"}, sys.executable, False),
    ],
)
def test_session_is_refused_before_it_starts_when_its_engines_lack_rocksdict(
    monkeypatch, tmp_path, conf, python, is_refused
):
    """Catches a query that fails task by task for what was known before it started."""
    pyspark_sql = pytest.importorskip("pyspark.sql")
    jar = tmp_path / "shim.jar"
    jar.touch()
    monkeypatch.setenv(JAR_VARIABLE, str(jar))
    monkeypatch.setenv("PYSPARK_PYTHON", python)
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    monkeypatch.setitem(sys.modules, "rocksdict", None)
    builder = pyspark_sql.SparkSession.Builder()
    builder._options = dict(conf)

    if is_refused:
        with pytest.raises(InvalidArgumentError, match=r"statestore\[rocksdb\]"):
            statestore.configure(builder, backend="rocksdb")
        assert builder._options == conf
    else:
        statestore.configure(builder, backend="rocksdb")
    statestore.configure(builder, backend="filesystem")
