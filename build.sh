#!/usr/bin/env bash
# Everything there is to do with a checkout. Each target does its own set-up, once.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

venv=.venv
python=$venv/bin/python
release= # of Spark, where it is not that of constraints.txt
older=   # of the same minor, where a minor was named

# Tests start thousands of Pythons: what these import is compiled once, and not by each.
unset PYTHONDONTWRITEBYTECODE

usage() {
  cat <<'END'
usage: ./build.sh TARGET [ARGUMENT...]

  setup     make the virtual environment .venv with pinned dependencies
  jar       compile the shim for the installed Spark and pack statestore/jars/*.jar
  jars      the same for every Spark minor
  demo      stream 336,776 real flights, kill the engine and the query, compare every row
  test      run the tests, or pytest with the given arguments
  test-spark SPARK  run Spark's tests on 4.0, 4.1 or 4.2, and a test of each kind on its oldest
            release, or pytest with the given arguments; 4.0.1 is that release alone
  next-spark [DIRECTORY]  say whether the shim fits the Spark that comes next: the newest release, also
            a preview, or the one whose jars are there
  test-all  run them with every operator in every combination, on every state backend and every Spark
  test-cluster LANE queries on a cluster of hosts on this machine, processes killed; LANE is
            standalone, yarn or kubernetes; --results=FILE writes what ran. Linux, as root, with iproute2
  test-s3   the tests of S3 on SeaweedFS in place of moto, or pytest with the given arguments
  test-nightly what is in none of these: the lanes on clusters, and test-s3
  conformance [SUITE...] Spark's own test suites on the providers, kept and shown in build/conformance.md;
            --spark 4.2, --providers filesystem,rocksdb,heap
  lint      check style, types, layers, the shim and the docs
  docs      the docs as a site in build/site, all links checked
  bench     measure all providers, results in build/bench (--rounds 1)
  bench-spark MINOR measure the queries on 4.0, 4.1, 4.2 or 4.3, results in build/sparks
  bench-growth measure a batch against the number of keys, as tables and lines; goes on where it stopped
  nexmark   the queries of Nexmark on all providers, or on yours (--provider CLASS --jars JAR), rows checked;
            goes on where it stopped
  shufflebench ShuffleBench's records, rules and consumers, likewise (--rules 1000,1000000)
  bench-real-time measure rows in real-time mode between topics of Kafka, beside Spark's RocksDB
  bench-spark-operations Spark's own benchmark of a store's operations, with this package's stores in it
  chaos     kill, freeze and starve real jobs; every row is counted (--seed, --faults, --minutes)
  attack    operate on checkpoints at random; every row is compared (--seed, --minutes)
  attack keyed  random programs of keyed state, likewise
  attack real_time  queries in real-time mode: kills and operations, likewise
  fuzz      fuzz what decodes files, 10 minutes each; --minutes 1, or the name of a target, is less
  soak      2,000 small batches on each state backend; memory and files must stay flat
  wheel     build dist/*.whl with the jars inside
  release   all that is published, in dist/, from a clean checkout: see RELEASING.md

Needs Python >= 3.11 and Java >= 17; PYTHON and JAVA_HOME name others than those on PATH.
END
}

fail() {
  printf 'build.sh: %s\n' "$1" >&2
  exit 1
}

require_java() {
  local java=${JAVA_HOME:+$JAVA_HOME/bin/}java version major
  version=$("$java" -version 2>&1 | sed -n 's/.*version "\([^"]*\)".*/\1/p' || true)
  [ -n "$version" ] ||
    fail "no Java found: command=$java. To fix: install Java 17 or newer, for example apt-get install openjdk-17-jre-headless"
  major=${version%%[.-]*}
  [ "$major" -ge 17 ] ||
    fail "Java is too old: command=$java, version=$version. To fix: install Java 17 or newer and set JAVA_HOME to it"
  if [ -n "${JAVA_HOME:-}" ]; then PATH=$JAVA_HOME/bin:$PATH; fi # for what starts a java by its name
}

# Whether a Python makes virtual environments, and is of a release that is served.
can_make() {
  "$1" -c 'import sys, ensurepip, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null
}

find_python() {
  local candidate
  for candidate in ${PYTHON:+"$PYTHON"} python3 python3.14 python3.13 python3.12 python3.11; do
    if can_make "$candidate"; then
      printf '%s\n' "$candidate"
      return
    fi
  done
  fail "no Python >= 3.11 with its venv module found. To fix: install it, for example apt-get install python3.11 python3.11-venv, or set PYTHON"
}

# Whether a virtual environment's Python is whole and of a release that is served.
is_python() {
  "$1" -c 'import pip, sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null
}

pins() {
  if [ -z "$release" ]; then cat constraints.txt; else sed "s/^pyspark==.*/pyspark==$release/" constraints.txt; fi
}

setup() {
  require_java
  local wanted interpreter
  wanted=$({ pins && cat pyproject.toml; } | cksum)
  # A Python that PYTHON names, or that the system has replaced by another, needs all of it anew.
  if ! is_python $python ||
    { [ -n "${PYTHON:-}" ] && can_make "$PYTHON" && [ "$($python -V)" != "$("$PYTHON" -V)" ]; }; then
    interpreter=$(find_python)
    rm -rf $venv
    "$interpreter" -m venv $venv
  fi
  if [ "$(cat $venv/stamp 2>/dev/null)" = "$wanted" ]; then
    return
  fi
  echo "installing dependencies into $venv" >&2
  pins >$venv/constraints.txt
  # Python compiles what it imports, which is a part of what is installed.
  local install=("$python" -m pip install --quiet --no-compile --disable-pip-version-check)
  install+=(-c $venv/constraints.txt)
  "${install[@]}" pip
  "${install[@]}" --build-constraint constraints.txt --group dev --editable '.[all]'
  printf '%s\n' "$wanted" >$venv/stamp
}

jar() {
  setup
  $python -m tools.shim_jar
}

jars() {
  setup
  $python -m tools.shim_jar --all
}

# The tests of style, which are the longest, run beside the other checks; what they say comes last.
run_lint() {
  local failed=0 styled style
  styled=$(mktemp)
  $python -m pytest -p no:benchmark tests/style >"$styled" 2>&1 &
  style=$!
  $python -m ruff check . || failed=1
  $python -m ruff format --check . || failed=1
  $python -m mypy || failed=1
  $venv/bin/lint-imports || failed=1
  make_site || failed=1
  wait $style || failed=1
  cat "$styled"
  rm -f "$styled"
  return $failed
}

# A group of pyproject.toml that few targets need, by a module that is there when it is installed.
need_group() {
  $python -c "import $2" 2>/dev/null ||
    $python -m pip install --quiet --no-compile --disable-pip-version-check -c constraints.txt --group "$1"
}

make_site() {
  need_group docs mkdocstrings
  NO_MKDOCS_2_WARNING=1 $python -m mkdocs build --strict
}

# Tests write many small files and wait until each is on the disk: in memory, where there is plenty,
# that takes a third of the time.
use_memory_for_scratch() {
  local free
  free=$(df -Pk /dev/shm 2>/dev/null | awk 'NR == 2 { print $4 }' || true)
  if [ -z "${TMPDIR:-}" ] && [ -w /dev/shm ] && [ "${free:-0}" -gt 6000000 ]; then
    TMPDIR=$(mktemp -d /dev/shm/statestore-test-XXXXXX)
    export TMPDIR
    trap 'rm -rf "$TMPDIR"' EXIT
  fi
}

# Tests without Spark also wait, for processes that start, for files on the disk and for clocks: three
# of them keep two processors busy. Two with Spark do, each with an application that its tests share;
# which of them stay together says tests/spark/conftest.py. The tests of style are lint's.
run_tests() {
  use_memory_for_scratch
  local failed=0 again pytest
  again=$(mktemp)
  # Only time is lost without it.
  $python -m tests.class_archive >"$again" 2>&1 || cat "$again" >&2
  : >"$again"
  pytest=("$python" -m tools.second_try "$again" -p no:benchmark --durations=25 -m "$1")
  "${pytest[@]}" -n 3 --dist worksteal \
    --ignore tests/spark --ignore tests/packaging --ignore tests/clusters --ignore tests/style || failed=1
  "${pytest[@]}" -n 2 --dist loadgroup --no-loadscope-reorder tests/spark tests/packaging || failed=1
  if [ -s "$again" ]; then
    echo "passed at the second try:"
    cat "$again"
  fi
  rm -f "$again"
  return $failed
}

# Has everything that follows on another Spark, in an environment of its own.
use_spark() {
  local oldest newest
  while read -r oldest newest; do
    case $1 in
      "$oldest") release=$oldest ;;
      "${newest%.*}") release=$newest older=$oldest ;;
    esac
  done <jvm-shim/spark-releases.txt
  [ -n "$release" ] || fail "no such Spark: spark=$1. To fix: name 4.0, 4.1, 4.2, 4.3, or the oldest release of one"
  venv=.venv-spark-$1
  python=$venv/bin/python
}

# The tests of a marker expression in files on the given state backends.
run_on_backends() {
  local failed=0 backend backends=$1 marked=$2
  shift 2
  for backend in $backends; do
    STATESTORE_LANE_PROVIDER=$backend $python -m pytest -p no:benchmark -m "$marked" -n 2 \
      --dist loadgroup --no-loadscope-reorder "$@" || failed=1
  done
  return $failed
}

# Spark's tests on another Spark: all of them on one state backend, operators on the others, too.
# Of the releases between the newest and the oldest it is enough that the jar can be linked with them.
run_on_spark() {
  local failed=0 operators=(tests/spark/test_{operators,transform_with_state,rescale}.py)
  run_on_backends filesystem "not extended or each_spark" tests/spark || failed=1
  run_on_backends "heap rocksdb" "not extended or each_spark" "${operators[@]}" || failed=1
  if [ -n "$older" ]; then
    $python -m tools.next_spark --releases "${release%.*}" || failed=1
    [ "$older" = "$release" ] || ./build.sh test-spark "$older" @tests/spark/smoke.txt || failed=1
  fi
  return $failed
}

target=${1:-help}
[ $# -eq 0 ] || shift
case $target in
  setup) setup ;;
  jar) jar ;;
  jars) jars ;;
  demo)
    jar
    exec $python examples/demo.py "$@"
    ;;
  test)
    jar
    if [ $# -gt 0 ]; then exec $python -m pytest -p no:benchmark "$@"; fi
    run_tests "not extended"
    ;;
  test-spark)
    use_spark "${1:-}"
    shift
    jar
    use_memory_for_scratch
    if [ $# -gt 0 ]; then $python -m pytest -p no:benchmark "$@"; else run_on_spark; fi
    ;;
  next-spark)
    jar
    exec $python -m tools.next_spark "$@"
    ;;
  test-all)
    jar
    need_group release cyclonedx
    export HYPOTHESIS_PROFILE=long
    failed=0
    run_tests "" || failed=1
    run_on_backends "heap rocksdb" "not extended" tests/spark || failed=1
    for minor in 4.0 4.1 4.2; do
      ./build.sh test-spark $minor || failed=1
    done
    $python -m tests.chaos --minutes 5 || failed=1
    $python -m tests.attack --minutes 5 || failed=1
    $python -m tests.attack.keyed --minutes 2 || failed=1
    exit $failed
    ;;
  test-cluster)
    lane=${1:-}
    [[ $lane =~ ^(standalone|yarn|kubernetes)$ ]] ||
      fail "no such lane: lane=$lane. To fix: name standalone, yarn or kubernetes"
    shift
    jar
    need_group cluster venv_pack
    # What a pod writes there would count against its memory.
    [ "$lane" = kubernetes ] || use_memory_for_scratch
    $python -m pytest -p no:benchmark -p no:randomly -s -rs "tests/clusters/test_$lane.py" "$@"
    ;;
  test-s3)
    jar
    need_group cluster venv_pack
    use_memory_for_scratch
    if [ $# -eq 0 ]; then set -- -m "not extended" -k s3 tests/faults tests/contract; fi
    STATESTORE_S3_SERVER=seaweedfs $python -m pytest -p no:benchmark "$@"
    ;;
  test-nightly)
    failed=0
    ./build.sh test-cluster standalone || failed=1
    ./build.sh test-cluster yarn || failed=1
    ./build.sh test-cluster kubernetes || failed=1
    ./build.sh test-s3 || failed=1
    exit $failed
    ;;
  conformance)
    jar
    use_memory_for_scratch
    $python -m tests.conformance "$@"
    ;;
  lint)
    jar
    run_lint
    ;;
  docs)
    setup
    make_site
    echo "build/site/index.html"
    ;;
  bench)
    jar
    exec $python -m benchmarks "$@"
    ;;
  bench-spark)
    if [ "${1:-}" != 4.3 ]; then use_spark "${1:-}"; fi
    shift
    jar
    exec $python -m benchmarks.sparks "$@"
    ;;
  bench-growth)
    jar
    exec $python -m benchmarks.growth "$@"
    ;;
  nexmark | shufflebench)
    jar
    exec $python -m "benchmarks.$target" "$@"
    ;;
  bench-real-time)
    jar
    exec $python -m benchmarks.real_time "$@"
    ;;
  bench-spark-operations)
    jar
    exec $python -m tests.conformance.operations "$@"
    ;;
  chaos)
    jar
    use_memory_for_scratch
    $python -m tests.chaos "$@"
    ;;
  attack)
    jar
    use_memory_for_scratch
    module=tests.attack
    case "${1:-}" in
      keyed | real_time)
        module=tests.attack.$1
        shift
        ;;
    esac
    $python -m $module "$@"
    ;;
  soak)
    jar
    exec $python -m benchmarks.soak "$@"
    ;;
  fuzz)
    setup
    need_group fuzz atheris ||
      fail "no atheris for this Python: command=$python. To fix: set PYTHON to a Python 3.11 to 3.13, delete .venv and run it again"
    exec $python -m tests.fuzz "$@"
    ;;
  wheel)
    jars
    rm -rf dist
    $python -m build --wheel --no-isolation
    ;;
  release)
    setup
    need_group release cyclonedx
    exec $python -m tools.release
    ;;
  help | -h | --help) usage ;;
  *)
    usage >&2
    fail "unknown target: $target. To fix: use one of the targets above"
    ;;
esac
