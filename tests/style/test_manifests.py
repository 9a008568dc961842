"""The files of docs/deploy for Kubernetes say the same as docs/deploy.md, and as each other."""

from __future__ import annotations

import re
import shlex
from itertools import pairwise
from typing import Any

import pytest
import yaml

from statestore.codec.sorting import RUN_BYTES
from statestore.core.options import PREFIX, TABLE

from .test_commands_in_documents import check
from .test_repo_style import ROOT

DOCS = ROOT / "docs"
KINDS = {
    "pod-monitor": ("monitoring.coreos.com/v1", "PodMonitor"),
    "network-policy": ("networking.k8s.io/v1", "NetworkPolicy"),
    "savepoints": ("batch/v1", "CronJob"),
    "spark-application": ("spark.apache.org/v1", "SparkApplication"),
}


def manifest(name: str) -> dict[str, Any]:
    """Return what a file of docs/deploy says."""
    return yaml.safe_load((DOCS / "deploy" / f"{name}.yaml").read_text())


def application_conf() -> dict[str, str]:
    return manifest("spark-application")["spec"]["sparkConf"]


def pod_of_savepoints() -> dict[str, Any]:
    return manifest("savepoints")["spec"]["jobTemplate"]["spec"]["template"]["spec"]


@pytest.mark.parametrize(("name", "kind"), KINDS.items())
def test_objects_are_of_the_namespace_that_the_operator_watches(
    name: str, kind: tuple[str, str]
) -> None:
    """Catches an object that nobody looks after."""
    found = manifest(name)
    namespaces = manifest("values")["workloadResources"]["namespaces"]["data"]

    assert (found["apiVersion"], found["kind"]) == kind
    assert found["metadata"]["name"].startswith("counts")
    assert [found["metadata"]["namespace"]] == namespaces
    assert f"deploy/{name}.yaml" in (DOCS / "deploy.md").read_text()


def test_application_has_the_configuration_of_the_submit_line() -> None:
    """Catches a file that was left behind when the line changed."""
    text = (DOCS / "deploy.md").read_text().partition("\n## Kubernetes\n")[2]
    _, *words = shlex.split(re.search(r"```sh\n(.*?)```", text, re.DOTALL)[1].replace("\\\n", " "))
    line = dict(pair.split("=", 1) for option, pair in pairwise(words) if option == "--conf")

    assert line.items() <= application_conf().items()
    assert manifest("spark-application")["spec"]["pyFiles"] == words[-1]
    account = manifest("values")["workloadResources"]["serviceAccount"]["name"]
    key = "spark.kubernetes.authenticate.driver.serviceAccountName"
    assert application_conf()[key] == account


def test_limits_of_restarts_are_not_of_the_whole_life_of_a_query() -> None:
    """Catches a query that stops for good at the sixth drained node, months after the first."""
    restarts = manifest("spark-application")["spec"]["applicationTolerations"]["restartConfig"]

    assert "maxRestartOnFailure" in restarts
    assert restarts["restartCounterResetMillis"] > 60_000


def test_job_is_not_in_the_working_directory() -> None:
    """Catches a driver that ends at once: Spark copies `pyFiles` there, first deleting what is."""
    assert "/work-dir/" not in manifest("spark-application")["spec"]["pyFiles"]


def test_values_of_the_application_are_texts_and_its_options_known() -> None:
    """Catches a number, which the operator refuses, and an option that is none."""
    of_spark = {"providerClass", "checkpointFormatVersion"}
    known = {option.key for option in TABLE} | of_spark
    conf = application_conf()

    assert all(isinstance(value, str) for value in conf.values())
    assert {key.removeprefix(PREFIX) for key in conf if key.startswith(PREFIX)} <= known


def test_savepoints_read_where_the_application_writes() -> None:
    """Catches a command that is none, or one that does not find the checkpoint."""
    pod = pod_of_savepoints()
    (container,) = pod["containers"]
    (mount,), (volume,) = container["volumeMounts"], pod["volumes"]
    claim = volume["persistentVolumeClaim"]["claimName"]
    conf = application_conf()

    check(shlex.join(["statestore", *container["args"]]))
    assert container["args"][1].startswith(f"{mount['mountPath']}/")
    for role in ("driver", "executor"):
        prefix = f"spark.kubernetes.{role}.volumes.persistentVolumeClaim.{mount['name']}"
        assert conf[f"{prefix}.options.claimName"] == claim
        assert conf[f"{prefix}.mount.path"] == mount["mountPath"]
    assert f"docker build --tag {container['image']} " in (DOCS / "deploy.md").read_text()


def test_savepoints_do_not_run_side_by_side() -> None:
    """Catches two that each count which savepoints are to go."""
    spec = manifest("savepoints")["spec"]

    assert spec["concurrencyPolicy"] == "Forbid"
    assert pod_of_savepoints()["restartPolicy"] == "Never"


def test_monitor_asks_executors_at_the_port_of_their_exporter() -> None:
    """Catches a monitor that finds no pod, or one that does not answer."""
    spec = manifest("pod-monitor")["spec"]
    (endpoint,) = spec["podMetricsEndpoints"]
    # The lines are commented out: without the exporter in the image no executor starts.
    text = (DOCS / "deploy" / "spark-application.yaml").read_text()
    (agent,) = re.findall(r"^    # spark\.executor\.extraJavaOptions: (.*)$", text, re.MULTILINE)

    port = agent.partition("=")[2].partition(":")[0]
    policy = manifest("network-policy")["spec"]

    assert spec["selector"]["matchLabels"] == {"spark-role": "executor"}
    assert policy["podSelector"] == spec["selector"]
    assert policy["ingress"][0]["ports"] == [{"protocol": "TCP", "port": int(port)}]
    # Where Spark makes no policy, executors still fetch from each other.
    (let_in,) = policy["ingress"][1]["from"]
    (roles,) = let_in["podSelector"]["matchExpressions"]
    assert (roles["key"], roles["values"]) == ("spark-role", ["driver", "executor"])
    # With a port of this name or number the operator keeps no pod: no container declares it.
    assert not endpoint.keys() & {"port", "portNumber", "targetPort"}
    name, address = endpoint["relabelings"]
    assert re.fullmatch(name["regex"], "spark-kubernetes-executor")
    assert (address["targetLabel"], address["replacement"]) == ("__address__", f"${{1}}:{port}")


def test_images_name_their_user_by_its_number() -> None:
    """Catches a build without that user, and a pod that `runAsNonRoot` refuses."""
    files = re.findall(r"```dockerfile\n(.*?)```", (DOCS / "deploy.md").read_text(), re.DOTALL)

    users = [re.findall(r"^USER (.+)$", file, re.MULTILINE)[-1] for file in files]

    assert users == [str(pod_of_savepoints()["securityContext"]["runAsUser"])] * 2


def test_savepoints_fit_the_limits_of_their_container() -> None:
    """Catches processes for all cores of a node, which are killed for lack of memory."""
    (container,) = pod_of_savepoints()["containers"]
    limits = container["resources"]["limits"]
    process_bytes = 3 * RUN_BYTES + (256 << 20)  # rows, and an interpreter

    assert int(limits["memory"].removesuffix("Gi")) << 30 >= (
        (1 + int(limits["cpu"])) * process_bytes
    )
