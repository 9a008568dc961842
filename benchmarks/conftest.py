"""Options, the shared measurements, and what goes into the results' JSON."""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyspark
import pytest

from benchmarks.measurements import Measurements
from benchmarks.sessions import is_available
from benchmarks.workloads import PROVIDERS, Suite, find_provider, full, quick


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of the benchmarks."""
    group = parser.getgroup("state store benchmarks")
    group.addoption("--quick", action="store_true", help="small sizes: a smoke test")
    group.addoption("--providers", help="comma-separated provider IDs; default: all there are")
    group.addoption("--rounds", type=int, help="repetitions of every run")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give every test the providers and the sizes that it asks for by parameter name."""
    suite = _suite(metafunc.config)
    parameters: dict[str, list[Any]] = {
        "provider": _provider_ids(metafunc.config),
        "query_name": [query.name for query in suite.queries],
        "operator_name": [query.name for query in suite.w8],
        "variable_name": [query.name for query in suite.w9],
        "rows": list(suite.w4.rows),
        "overlap": list(suite.w4.overlaps),
        "delta_bytes": list(suite.w5.delta_bytes),
        "value_bytes": list(suite.w5.value_bytes),
    }
    for name, values in parameters.items():
        if name in metafunc.fixturenames:
            metafunc.parametrize(name, values)


@pytest.fixture(scope="session")
def all_measurements(request: pytest.FixtureRequest) -> Measurements:
    """Measurements of all providers that can run here; each is made when first asked for."""
    wanted = _provider_ids(request.config)
    providers = tuple(p for p in PROVIDERS if p.id in wanted and is_available(p))
    is_quick = bool(request.config.getoption("--quick"))
    return Measurements(_suite(request.config), providers, is_quick=is_quick)


@pytest.fixture
def measurements(all_measurements: Measurements, provider: str) -> Measurements:
    """`all_measurements`, for a test of a provider that can run here."""
    if provider not in {p.id for p in all_measurements.providers}:
        pytest.skip(f"provider {provider} needs its jar: ./build.sh jar")
    return all_measurements


@pytest.fixture
def store_measurements(measurements: Measurements, provider: str) -> Measurements:
    """`measurements`, for a test of a store without a query."""
    if not find_provider(provider).keeps_state:
        pytest.skip(f"provider {provider} keeps no state")
    return measurements


@pytest.fixture
def variable_measurements(
    measurements: Measurements, variable_name: str, provider: str
) -> Measurements:
    """`measurements`, for a test of `transformWithState`."""
    return _of_query(measurements, variable_name, provider)


@pytest.fixture
def operator_measurements(
    measurements: Measurements, operator_name: str, provider: str
) -> Measurements:
    """`measurements`, for a test of another operator than an aggregation."""
    return _of_query(measurements, operator_name, provider)


@pytest.hookimpl
def pytest_benchmark_update_machine_info(machine_info: dict[str, Any]) -> None:
    """Name the versions that matter, and not the machine."""
    machine_info.pop("node", None)
    java = subprocess.run(["java", "-version"], capture_output=True, text=True, check=True).stderr
    machine_info.update(
        cpus=os.cpu_count(),
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        kernel=platform.release(),
        java=java.splitlines()[0],
        spark=pyspark.__version__,
        pyarrow=pa.__version__,
    )


@pytest.hookimpl
def pytest_benchmark_update_json(config: pytest.Config, output_json: dict[str, Any]) -> None:
    """Keep the sizes and the options beside the results, and no dates."""
    output_json.pop("datetime", None)
    for name in ("time", "author_time"):
        output_json["commit_info"].pop(name, None)
    output_json["suite"] = repr(_suite(config))
    given = [word for word in config.invocation_params.args if "/" not in word]
    output_json["options"] = shlex.join(given)


def _of_query(measurements: Measurements, name: str, provider: str) -> Measurements:
    if not find_provider(provider).can_run(measurements.suite.query(name)):
        pytest.skip(f"{name} is not measured on provider {provider}")
    return measurements


def _suite(config: pytest.Config) -> Suite:
    suite = quick() if config.getoption("--quick") else full()
    rounds = config.getoption("--rounds")
    return replace(suite, rounds=rounds) if rounds else suite


def _provider_ids(config: pytest.Config) -> list[str]:
    wanted = config.getoption("--providers")
    return wanted.split(",") if wanted else [provider.id for provider in PROVIDERS]
