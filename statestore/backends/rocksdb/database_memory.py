"""The memory of RocksDB, which all databases of an engine share, and the options of each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rocksdict import (
    BlockBasedIndexType,
    BlockBasedOptions,
    Cache,
    DBCompactionStyle,
    DBCompressionType,
    Env,
    Options,
    UniversalCompactOptions,
    WriteBufferManager,
)

if TYPE_CHECKING:
    from statestore.core.options import StateStoreOptions

BLOOM_BITS_PER_KEY = 10
TABLE_FORMAT = 6
"""Of RocksDB's tables: the newest that the RocksDB of Spark 4.0 reads. What a newer library merged
in a newer one could be read by no executor."""
COMPACTION_THREADS = 2
"""Threads of a process that compact, for all its databases together."""


class DatabaseMemory:
    """The memory that all databases of an engine share: one block cache, one write buffer.

    Args:
        budget_bytes: Most bytes of both together.

    Attributes:
        budget_bytes: As given.
        cache: The block cache.
        write_buffer: What bounds the write buffers, charged to the cache.
    """

    def __init__(self, budget_bytes: int) -> None:
        self.budget_bytes = budget_bytes
        self.cache = Cache(budget_bytes)
        # Charged to the cache: one bound for both. Ingested rows never pass through it.
        self.write_buffer = WriteBufferManager.new_write_buffer_manager_with_cache(
            budget_bytes, False, self.cache
        )
        self._env = Env()
        # Compactions run at the priority of the thread that starts these: here, that of commits.
        # At a lower one they wait while tasks keep all cores busy, and lookups ask ever more files.
        self._env.set_low_priority_background_threads(COMPACTION_THREADS)

    @property
    def used_bytes(self) -> int:
        """Bytes of the budget in use: cached blocks and write buffers."""
        return int(self.cache.get_usage())

    def options(self, options: StateStoreOptions, *, is_kept: bool = False) -> Options:
        """Return the options of a database or an SST.

        Args:
            options: rocksdb_compression and rocksdb_block_size_kb are used.
            is_kept: Whether it is a database that many versions come into, which RocksDB is to
                compact; others are made to be read once.
        """
        made = Options(raw_mode=True)
        made.set_disable_auto_compactions(not is_kept)
        made.create_if_missing(True)
        table = BlockBasedOptions()
        table.set_format_version(TABLE_FORMAT)
        table.set_block_cache(self.cache)
        # In pieces, so that a cache smaller than all filters still serves a lookup by reading a few
        # small blocks.
        table.set_index_type(BlockBasedIndexType.two_level_index_search())
        table.set_partition_filters(True)
        table.set_cache_index_and_filter_blocks(True)
        table.set_pin_top_level_index_and_filter(True)
        table.set_block_size(options.rocksdb_block_size_kb * 1024)
        table.set_bloom_filter(BLOOM_BITS_PER_KEY, False)
        made.set_block_based_table_factory(table)
        made.set_write_buffer_manager(self.write_buffer)
        made.set_env(self._env)
        made.set_compression_type(getattr(DBCompressionType, options.rocksdb_compression)())
        # A directory may be deleted while a reader has it open.
        made.set_max_open_files(-1)
        made.set_max_background_jobs(2)
        # Files of similar size become one. Levels would rewrite most of the level below for a few
        # small files.
        made.set_compaction_style(DBCompactionStyle.universal())
        universal = UniversalCompactOptions()
        universal.size_ratio = 30
        universal.max_size_amplification_percent = 100
        made.set_universal_compaction_options(universal)
        made.set_keep_log_file_num(1)
        made.set_max_log_file_size(1 << 20)
        # Every view has a copy.
        made.set_max_manifest_file_size(1 << 20)
        return made
