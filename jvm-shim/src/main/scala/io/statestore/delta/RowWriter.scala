package io.statestore.delta

import io.statestore.view.BytesRef

/** Writes the rows of a delta to a scratch file. The caller gives them in the backend's order. */
private[statestore] trait RowWriter extends AutoCloseable {

  /** Adds a row; `value` is null where the row has none. */
  def add(keyGroup: Int, family: Int, op: Int, key: BytesRef, value: BytesRef): Unit

  /** Ends the file and returns its length in bytes. */
  def finish(): Long
}
