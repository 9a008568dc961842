package io.statestore.view

import org.apache.spark.sql.catalyst.expressions.UnsafeRow

/**
 * Tells which rows of transformWithState Spark would evict before their time. One per handle.
 *
 * Spark evicts by the index of a state variable with a time to live: for each row (expiry, key) of
 * `$ttl_NAME` that is due it removes that row, and next the key's row in NAME, whatever expiry that
 * row has itself. `MapState.removeKey`, and `deleteIfExists` of a value or a map, leave their rows
 * in the index (Spark 4.0 to 4.3: MapStateImplWithTTL, StatefulProcessorHandleImpl). Where such a
 * key is put again, its new row would go when the old one was due. Every other removal that Spark
 * does right behind one of the index finds no row: its order is row first, index last.
 */
private[statestore] final class Evictions {
  // Row that the write before removed from an index, and the family of the index.
  private var family: String = _
  private var indexRow: UnsafeRow = _

  /** Takes note of a write that removes nothing. */
  def written(): Unit = if (family != null) {
    family = null
    indexRow = null // It points into the task's pages.
  }

  /** Takes note of a removal; returns whether its row expires later than the index said. */
  def isEarly(key: UnsafeRow, state: FamilyState): Boolean = {
    val isEviction = family != null && family == state.family.name &&
      indexRow.getStruct(1, key.numFields) == key
    val dueMs = if (isEviction) indexRow.getLong(0) else 0L
    family = state.family.indexOf
    indexRow = if (family == null) null else key
    isEviction && {
      val row = state.get(key)
      row != null && row.getLong(row.numFields - 1) > dueMs
    }
  }
}
