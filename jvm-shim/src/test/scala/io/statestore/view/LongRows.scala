package io.statestore.view

import io.statestore.keygroup.PartitionKey
import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions.{UnsafeProjection, UnsafeRow}
import org.apache.spark.sql.execution.streaming.state.{NoPrefixKeyStateEncoderSpec, StateStore}
import org.apache.spark.sql.types.{LongType, StructType}

/** A column family whose keys and values are rows of one number. */
object LongRows {
  private val schema = new StructType().add("v", LongType)
  private val toRow = UnsafeProjection.create(schema)

  val maxParallelism = 64

  val family: ColumnFamily = ColumnFamily(
    ColumnFamily.DefaultId,
    StateStore.DEFAULT_COL_FAMILY_NAME,
    NoPrefixKeyStateEncoderSpec(schema),
    schema,
    multiValues = false,
    internal = false)

  def row(number: Int): UnsafeRow = toRow(InternalRow(number.toLong)).copy()

  /** An empty view of a store with this family. */
  def emptyView(): PagedView = {
    val view = new PagedView(ViewVersion(0, null, null, rescalable = true), maxParallelism)
    view.addFamily(family)
    view
  }

  /** The family's state: `committed`, which may be null, under the writes in `overlay`. */
  def stateOf(committed: CommittedFamily, overlay: Overlay): FamilyState = {
    val keyGroup = PartitionKey.function(
      "default", useColumnFamilies = false, family.name, family.spec, maxParallelism)
    new FamilyState(family, committed, overlay, () => overlay.family(family, keyGroup))
  }
}
