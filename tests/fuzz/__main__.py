"""Runs a fuzzer: `./build.sh fuzz [--minutes N] [TARGET...]`; what it finds is to be mended.

Inputs that reach new code are kept in `.fuzz/TARGET`, outside of the repository. One that crashes
is copied to tests/fuzz/corpus/TARGET once it is mended: a test replays those.
"""

import argparse
import copy
import json
import random
import resource
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
VALUES = (
    None, True, False, 0, 1, -1, 2, 7, 4096, 65536, 1 << 31, 1 << 63, 1 << 64, 10**300, 0.5, 1e308,
    float("inf"), float("nan"), "", "0", "..", "../x", "../1/2.delta.arrows", "a" * 32, "x" * 500,
    "\x00", "\ud800", [], {}, [[]], [0], [1, 0], {"type": "struct", "fields": []}, "decimal(99,2)",
    "array", "long",
)  # fmt: skip
MEMORY_BYTES = 4 << 30
"""All that a fuzzer may map: an allocation by what a file claims fails at once."""
MINUTES_AT_ONCE = 2
"""Of one process: atheris never lets go of what a comparison of arrays returned."""


def main():
    parser = argparse.ArgumentParser(prog="./build.sh fuzz", description=__doc__)
    parser.add_argument("targets", nargs="*", metavar="TARGET")
    parser.add_argument("--minutes", type=float, default=10.0, help="for each target")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        fuzz_one(arguments.targets[0], arguments.minutes)
    names = sorted(path.name for path in (HERE / "corpus").iterdir())
    failed = []
    for name in arguments.targets or names:
        if name not in names:
            parser.error(f"unknown target: {name}. To fix: use one of {', '.join(names)}")
        print(f"{name}: {arguments.minutes:g} minutes", flush=True)
        again = [sys.executable, "-m", "tests.fuzz", "--one", name]
        left = arguments.minutes
        while left > 0 and name not in failed:
            minutes = min(left, MINUTES_AT_ONCE)
            done = subprocess.run([*again, "--minutes", str(minutes)], check=False)
            failed += [name] if done.returncode else []
            left -= minutes
    if failed:
        sys.exit(f"fuzz: crashed: {', '.join(failed)}; the input is named above")


def fuzz_one(name, minutes):
    """Fuzz one target; ends the process."""
    import atheris

    with atheris.instrument_imports(include=["statestore"]):
        from tests.fuzz.targets import TARGETS
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    found = Path(".fuzz") / name
    found.mkdir(parents=True, exist_ok=True)
    options = {
        "max_total_time": int(minutes * 60), "max_len": 4096, "timeout": 20, "rss_limit_mb": 1024,
        "print_final_stats": 1, "verbosity": 0, "artifact_prefix": f"{found}-crash-",
    }  # fmt: skip
    flags = [f"-{key}={value}" for key, value in options.items()]
    corpora = [str(found), str(HERE / "corpus" / name)]
    how = {}
    if name in ("trailer", "json"):

        def mutate(data, max_size, seed):
            return mutate_json(data, max_size, seed) or atheris.Mutate(data, max_size)

        how["custom_mutator"] = mutate
    atheris.Setup([name, *flags, *corpora], TARGETS[name], **how)
    atheris.Fuzz()


def mutate_json(data, max_size, seed):
    """Return a document with a value replaced, doubled or dropped; None where it is not JSON.

    One line is changed, as Spark's logs have a document in each.
    """
    rng = random.Random(seed)
    lines = data.split(b"\n")
    line = rng.randrange(len(lines))
    try:
        document = json.loads(lines[line])
    except (ValueError, RecursionError):
        return None
    places = list(_places(document))
    if not places or rng.random() < 0.2:
        return None
    holder, at = rng.choice(places)
    action = rng.randrange(8)
    if action == 0:
        del holder[at]
    elif action == 1:
        other, there = rng.choice(places)
        holder[at] = copy.deepcopy(other[there])
    elif action == 2 and isinstance(holder, list):
        holder.insert(at, copy.deepcopy(holder[at]))
    else:
        holder[at] = copy.deepcopy(rng.choice(VALUES))
    lines[line] = json.dumps(document).encode()
    changed = b"\n".join(lines)
    return changed if len(changed) <= max_size else None


def _places(value):
    if isinstance(value, dict | list):
        for at in list(value) if isinstance(value, dict) else range(len(value)):
            yield value, at
            yield from _places(value[at])


if __name__ == "__main__":
    main()
