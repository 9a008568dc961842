package io.statestore.view

/**
 * The rows of one store at one version: a cache of durable state that can be dropped at any time
 * and loaded again. `advance`, `rollBack` and `becomeAttempt` change it in place and are only
 * allowed while no handle is open on it (`ViewStateStoreProvider` sees to it).
 */
private[statestore] trait WorkingView {
  def version: ViewVersion
  def maxParallelism: Int

  /** The version `rollBack` would go to, or null. */
  def previous: ViewVersion

  private var handles = 0
  private var retired = false

  /** Handles that may read the view or rows of it; guarded by the provider's lock. */
  def openHandles: Int = handles

  def open(): Unit = handles += 1

  def release(): Unit = {
    handles -= 1
    if (handles == 0) {
      idle()
      if (retired) close()
    }
  }

  /** No further handle will be opened: what the view holds beside memory goes with the last one. */
  def retire(): Unit = if (!retired) {
    retired = true
    if (handles == 0) close()
  }

  /** Whether what it shows can no longer be read: it is to be loaded again. */
  def isUnfit: Boolean = false

  /** Whether it is so because the local disk is damaged. */
  def isDamaged: Boolean = false

  /** The last handle is gone. */
  protected def idle(): Unit = ()

  protected def close(): Unit = ()

  def families: Iterable[ColumnFamily]

  /** The rows of a column family, or null. */
  def family(name: String): CommittedFamily

  /** Rows, those of internal column families included. */
  def numRows: Long

  def numInternalKeys: Long

  /** Rows as `StateStoreMetrics.numKeys` counts them: without internal column families. */
  def numKeys: Long = numRows - numInternalKeys

  def bytes: Long

  /** Makes the view the version that a commit made durable. */
  def advance(to: ViewAdvance): Unit

  /** Goes back to the version before the last `advance`. */
  def rollBack(): Unit

  /** Becomes the view of another attempt of its version, with the same rows. */
  def becomeAttempt(checkpointId: String): Unit
}

/** The committed rows of one column family. Bytes it shows stay valid until the task ends. */
private[statestore] trait CommittedFamily {

  /** Shows the value of a key in `into`; false when it is not there. */
  def get(keyBase: AnyRef, keyAt: Long, keyLen: Int, hash: Int, into: BytesRef): Boolean

  /** Every row. */
  def rows(): CommittedCursor

  /** The rows in `[from, until)` by key, bounds encoded, null for open; of an ordered family. */
  def range(from: Array[Byte], until: Array[Byte]): CommittedCursor

  /**
   * For each of `count` records of `other` a number in `found`: negative when its key is not there.
   */
  def findSlots(other: RecordPages, records: Array[Int], count: Int, found: Array[Int]): Unit
}

/** Walks committed rows; `key` and `value` are those of the row that `advance` went to. */
private[statestore] abstract class CommittedCursor {
  val key = new BytesRef
  val value = new BytesRef

  def advance(): Boolean

  /** Gives up what the cursor holds beside memory; `advance` is not called again. */
  def close(): Unit = ()
}

/**
 * The change that a commit makes to the view it was made on.
 *
 * @param families the column families of the new version
 * @param end      is called when nothing reads `changes` any more
 */
private[statestore] final class ViewAdvance(
    val version: ViewVersion,
    val families: Seq[ColumnFamily],
    val changes: Seq[FamilyChanges],
    val end: () => Unit = () => ())

/**
 * A version a view can be at; the checkpoint ID and lineage tell two attempts of it apart, and are
 * null where there is nothing to build on.
 *
 * @param stateBytes bytes of the keys and values of its rows; 0 where nobody asks
 */
private[statestore] final case class ViewVersion(
    number: Long,
    checkpointId: String,
    lineage: String,
    rescalable: Boolean,
    stateBytes: Long = 0L)
