"""Sends a file of edits to the topic `edits`.

    python -m examples.wikipedia_edits.produce --servers 127.0.0.1:9092 --edits FILE

An edit is a line of JSON, see `topics.parse`; the file may be compressed with gzip.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from examples.wikipedia_edits.topics import produce, read_edits, start_spark


def main() -> None:
    """Parse the command line and send the edits."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--servers", default="127.0.0.1:9092", help="the broker")
    parser.add_argument("--edits", type=Path, required=True, help="file of JSON lines")
    parser.add_argument("--topic", default="edits")
    arguments = parser.parse_args()
    spark = start_spark("local[1]")
    produce(read_edits(spark, arguments.edits), arguments.servers, arguments.topic)
    spark.stop()


if __name__ == "__main__":
    main()
