"""What processes of operations have imported when they begin; pyarrow asks for pandas."""

import duckdb  # noqa: F401
import pandas  # noqa: F401
import pyarrow.compute
import pyarrow.csv
import pyarrow.dataset
import pyarrow.parquet  # noqa: F401
import rocksdict  # noqa: F401

import statestore.api.checkpoint
import statestore.cli.commands
import statestore.cli.converting
import statestore.cli.inspecting
import statestore.cli.listing
import statestore.cli.rescale
import statestore.cli.savepoints
import statestore.cli.trial
import statestore.cli.upkeep
import statestore.cli.writing  # noqa: F401
