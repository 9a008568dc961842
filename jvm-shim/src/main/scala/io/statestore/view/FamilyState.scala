package io.statestore.view

import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.execution.streaming.state.{StateStoreIterator, UnsafeRowPair}
import org.apache.spark.unsafe.Platform

/**
 * One column family as a store handle sees it: the committed rows with the handle's own writes on
 * top. Rows it returns are fresh headers over bytes that stay until the task ends. Iterators show
 * the state at their creation, whatever is written while they are open.
 *
 * A call encodes the key into `codec` and looks it up in the overlay first. A put or a delete that
 * it finds there is the answer. A merge is only the end of a list: its values follow those of the
 * view. Where the overlay has no record of the key, the view answers.
 *
 * A scan takes three steps when it is created, and no write may come between them: it lists the
 * overlay's records of the family, or freezes their index where it reads them in order; it asks for
 * their pages (`OverlayFamily.showAll`); and it notes how long each list is. From then on writes
 * and spills may run between any two rows of the scan. It sees none of them, because
 *  - a write appends a record, or overwrites one that is newer than all that was shown; the scan
 *    keeps to the addresses that it has, in the page table that it has;
 *  - a write copies the block of a frozen index that it changes;
 *  - a list grows behind the length that was noted, and a spill leaves readers its old array;
 *  - the view does not change while a handle is open on it.
 * A row that `get` returns of a record that may be overwritten is a copy.
 *
 * `codec` and `ref` are those of the last call: two calls never overlap, and a scan has references
 * of its own.
 */
private[statestore] final class FamilyState(
    val family: ColumnFamily,
    committed: CommittedFamily,
    overlay: Overlay,
    newOverlayFamily: () => OverlayFamily) {
  import RecordPages._

  private val codec = new KeyCodec(family)
  private val valueCodec = new ValueCodec(family)
  private val ref = new BytesRef
  // Not null from the start where a family of the name was removed in this batch.
  private var written: OverlayFamily = overlay.writtenFamily(family.id)

  def keyCodec: KeyCodec = codec

  def get(key: UnsafeRow): UnsafeRow = {
    codec.encode(key)
    val hash = RecordTable.hashKey(codec.base, codec.at, codec.length)
    val own = findOwn(hash)
    if (family.multiValues) {
      val rows = values(own, hash)
      if (rows.hasNext) rows.next() else null
    } else if (own != 0) {
      if ((overlay.pages.flags(own) & OpMask) == Delete) {
        null
      } else {
        written.value(own, ref)
        if (written.isMutable(own)) copiedRow(ref) else valueRow(ref)
      }
    } else {
      if (isCommitted(hash)) valueRow(ref) else null
    }
  }

  def keyExists(key: UnsafeRow): Boolean = {
    codec.encode(key)
    val hash = RecordTable.hashKey(codec.base, codec.at, codec.length)
    val own = findOwn(hash)
    if (own != 0) (overlay.pages.flags(own) & OpMask) != Delete
    else isCommitted(hash)
  }

  def values(key: UnsafeRow): Iterator[UnsafeRow] = {
    codec.encode(key)
    val hash = RecordTable.hashKey(codec.base, codec.at, codec.length)
    values(findOwn(hash), hash)
  }

  def put(key: UnsafeRow, value: UnsafeRow): Unit = {
    val hash = startWrite(key)
    val values = Iterator.single(value)
    if (family.multiValues) written.putValues(key, codec, hash, Put, encoded(values))
    else written.put(key, codec, hash, valueCodec.encode(value))
  }

  def putValues(key: UnsafeRow, values: Iterator[UnsafeRow], append: Boolean): Unit = {
    val hash = startWrite(key)
    written.putValues(key, codec, hash, if (append) Merge else Put, encoded(values))
  }

  def remove(key: UnsafeRow): Unit = {
    val hash = startWrite(key)
    val own = findOwn(hash)
    if (own == 0) written.delete(key, codec, hash)
    else if ((overlay.pages.flags(own) & OpMask) != Delete) {
      if (isCommitted(hash)) written.delete(key, codec, hash)
      else written.forget(codec, hash)
    }
  }

  /** Removes every key in `[from, until)`, bounds encoded, null for open. */
  def removeRange(from: Array[Byte], until: Array[Byte]): Unit = removeEach(pairs(from, until))

  def removeAll(): Unit = removeEach(allPairs())

  private def removeEach(cursor: PairCursor): Unit = while (cursor.advance()) remove(cursor.key)

  /** One pair per key, with the first of its values. */
  def iterator(): StateStoreIterator[UnsafeRowPair] = firstValues(allPairs())

  /** One pair per value, those of a key together and in append order. */
  def iteratorWithMultiValues(): StateStoreIterator[UnsafeRowPair] = everyValue(allPairs())

  def scan(from: Array[Byte], until: Array[Byte]): StateStoreIterator[UnsafeRowPair] =
    firstValues(pairs(from, until))

  def scanWithMultiValues(
      from: Array[Byte],
      until: Array[Byte]): StateStoreIterator[UnsafeRowPair] =
    everyValue(pairs(from, until))

  private def startWrite(key: UnsafeRow): Int = {
    if (written == null) written = newOverlayFamily()
    codec.encode(key)
    RecordTable.hashKey(codec.base, codec.at, codec.length)
  }

  private def findOwn(hash: Int): Int =
    if (written == null || written.isEmpty) 0 else written.find(codec, hash)

  /** Whether the key in `codec` is committed; its value is in `ref` then. */
  private def isCommitted(hash: Int): Boolean =
    committed != null && committed.get(codec.base, codec.at, codec.length, hash, ref)

  private def valueRow(from: BytesRef): UnsafeRow =
    valueCodec.decode(from.base, from.at, from.length)

  /** A row of its own: else the next put of the key would leave this record, and append one. */
  private def copiedRow(from: BytesRef): UnsafeRow = {
    val bytes = new Array[Byte](from.length)
    copyBytes(from.base, from.at, bytes, Platform.BYTE_ARRAY_OFFSET.toLong, from.length)
    valueCodec.decode(bytes, Platform.BYTE_ARRAY_OFFSET.toLong, from.length)
  }

  /** Each is stored before the next is asked for. */
  private def encoded(values: Iterator[UnsafeRow]): Iterator[UnsafeRow] =
    values.map(valueCodec.encode)

  private def values(own: Int, hash: Int): Iterator[UnsafeRow] = {
    val op = if (own == 0) Merge else overlay.pages.flags(own) & OpMask
    val below =
      if (op == Merge && isCommitted(hash)) rowsOf(ref.base, ref.at, ref.length)
      else Iterator.empty
    val above = if (own == 0 || op == Delete) Iterator.empty else ownRows(own)
    below ++ above
  }

  private def ownRows(address: Int): Iterator[UnsafeRow] = {
    val list = written.listOf(address)
    if (list == null) rowsOf(overlay.pages, address) else list.rows(list.length, valueCodec)
  }

  private def rowsOf(pages: RecordPages, address: Int): Iterator[UnsafeRow] =
    rowsOf(pages.base(address), pages.valueOffset(address), pages.valueLength(address))

  private def rowsOf(base: AnyRef, at: Long, length: Int): Iterator[UnsafeRow] =
    if (family.multiValues) MultiValues.rows(base, at, length, valueCodec)
    else Iterator.single(valueCodec.decode(base, at, length))

  private def firstValues(cursor: PairCursor): StateStoreIterator[UnsafeRowPair] =
    new StateStoreIterator(
      new Iterator[UnsafeRowPair] {
        private var ready = cursor.advance()

        override def hasNext: Boolean = ready

        override def next(): UnsafeRowPair = {
          if (!ready) throw new NoSuchElementException("no more rows")
          val pair = new UnsafeRowPair(cursor.key, cursor.values.next())
          ready = cursor.advance()
          pair
        }
      },
      () => cursor.close())

  private def everyValue(cursor: PairCursor): StateStoreIterator[UnsafeRowPair] =
    new StateStoreIterator(
      Iterator
        .continually(cursor)
        .takeWhile(_.advance())
        .flatMap { at =>
          val key = at.key
          at.values.map(new UnsafeRowPair(key, _))
        },
      () => cursor.close())

  /** Every key, ordered where the family is. */
  private def allPairs(): PairCursor =
    if (family.ordered) pairs(null, null) else new UnorderedCursor

  private def pairs(from: Array[Byte], until: Array[Byte]): PairCursor =
    new OrderedCursor(from, until)

  /** The handle's own records of a scan as they were when it began. */
  private abstract class OwnRecords {
    def pages: RecordPages

    def hasNext: Boolean

    /** The record that `advance` goes to. */
    def upcoming: Int

    def advance(): Int

    /** The values of the record that `advance` went to. */
    def rows: Iterator[UnsafeRow]

    /** Gives up what was not shown. */
    def close(): Unit
  }

  /** A list of records: those with lists of values have the lengths of then. */
  private final class ListedRecords(addresses: Array[Int]) extends OwnRecords {
    // Not asked for where there is nothing: it keeps all records from being overwritten.
    val pages: RecordPages = if (addresses.isEmpty) null else written.showAll()
    private val lists = if (family.multiValues) addresses.map(written.listOf(_)) else null
    private val lengths =
      if (lists == null) null else lists.map(list => if (list == null) 0 else list.length)
    private var next = 0

    override def hasNext: Boolean = next < addresses.length

    override def upcoming: Int = addresses(next)

    override def advance(): Int = {
      next += 1
      addresses(next - 1)
    }

    override def rows: Iterator[UnsafeRow] = {
      val list = if (lists == null) null else lists(next - 1)
      if (list == null) rowsOf(pages, addresses(next - 1))
      else list.rows(lengths(next - 1), valueCodec)
    }

    override def close(): Unit = next = addresses.length
  }

  /** Records in order, found one by one: who asks for what is due reads few of many timers. */
  private final class RangeOfRecords(from: Array[Byte], until: Array[Byte]) extends OwnRecords {
    private val index = written.sorted
    val pages: RecordPages = written.showAll()
    private val cursor = index.frozen(pages).range(from, until)
    private var current = 0
    private var next = cursor.next()

    override def hasNext: Boolean = next != 0

    override def upcoming: Int = next

    override def advance(): Int = {
      current = next
      next = cursor.next()
      if (next == 0) index.thaw()
      current
    }

    override def rows: Iterator[UnsafeRow] = rowsOf(pages, current)

    override def close(): Unit = if (next != 0) {
      next = 0
      index.thaw()
    }
  }

  private def recordsBetween(from: Array[Byte], until: Array[Byte]): OwnRecords =
    if (written == null || written.sorted.range(from, until).next() == 0) {
      new ListedRecords(Array.emptyIntArray)
    } else if (family.multiValues) {
      // What is written takes the lists of records away.
      val cursor = written.sorted.range(from, until)
      new ListedRecords(Iterator.continually(cursor.next()).takeWhile(_ != 0).toArray)
    } else {
      new RangeOfRecords(from, until)
    }

  /** Walks the keys of the state at its creation. */
  private abstract class PairCursor {
    protected val owns: OwnRecords

    /** The current key's record among `owns`, 0 where there is none. */
    protected var own = 0

    def advance(): Boolean

    protected def below: CommittedCursor

    /** Whether the current key has a committed row, which `committedValue` is then. */
    protected def hasBelow: Boolean
    protected val committedValue = new BytesRef

    def key: UnsafeRow =
      if (own != 0) codec.decode(owns.pages, own)
      else codec.decode(below.key.base, below.key.at, below.key.length)

    def values: Iterator[UnsafeRow] = {
      val isAppended = own == 0 || (owns.pages.flags(own) & OpMask) == Merge
      val first =
        if (isAppended && hasBelow) {
          rowsOf(committedValue.base, committedValue.at, committedValue.length)
        } else {
          Iterator.empty
        }
      val above = if (own == 0) Iterator.empty else owns.rows
      first ++ above
    }

    def close(): Unit = {
      owns.close()
      if (below != null) below.close()
    }

    protected def isDelete(address: Int): Boolean = (owns.pages.flags(address) & OpMask) == Delete
  }

  /**
   * First the handle's own records, then the committed rows without the keys in the overlay. The
   * table is frozen with the list: a key that is written while the scan runs would else hide its
   * committed row, and be shown by neither.
   */
  private final class UnorderedCursor extends PairCursor {
    private val ownTable =
      if (written == null || written.isEmpty) null else written.table.frozen
    protected val owns =
      new ListedRecords(if (ownTable == null) Array.emptyIntArray else ownTable.liveAddresses)
    protected val below: CommittedCursor = if (committed == null) null else committed.rows()
    protected var hasBelow = false

    override def advance(): Boolean = advanceOwn() || advanceBelow()

    private def advanceOwn(): Boolean = {
      while (owns.hasNext) {
        own = owns.advance()
        if (!isDelete(own)) {
          val base = owns.pages.base(own)
          val at = owns.pages.keyOffset(own)
          val length = owns.pages.keyLength(own)
          // Only the values of a merge go on the committed ones.
          hasBelow = committed != null && (owns.pages.flags(own) & OpMask) == Merge &&
            committed.get(base, at, length, RecordTable.hashKey(base, at, length), committedValue)
          return true
        }
      }
      own = 0
      false
    }

    private def advanceBelow(): Boolean = {
      while (below != null && below.advance()) {
        val key = below.key
        if (ownTable == null || ownTable.find(key.base, key.at, key.length, hashOf(key)) < 0) {
          hasBelow = true
          committedValue.set(below.value.base, below.value.at, below.value.length)
          return true
        }
      }
      false
    }

    private def hashOf(key: BytesRef): Int = RecordTable.hashKey(key.base, key.at, key.length)
  }

  /**
   * Merges the ordered index of the overlay and the committed rows. Between two calls of `advance`
   * each side stands before its first key that was not shown, and `waiting` says whether `below`
   * has one. On equal keys both go on, so that no key comes twice: a put or delete then hides the
   * committed row, a merge goes on it.
   */
  private final class OrderedCursor(from: Array[Byte], until: Array[Byte]) extends PairCursor {
    protected val owns = recordsBetween(from, until)
    protected val below: CommittedCursor =
      if (committed == null) null else committed.range(from, until)
    // The committed row that was not shown yet.
    private var waiting = below != null && below.advance()
    protected var hasBelow = false

    override def advance(): Boolean = {
      while (true) {
        if (hasBelow) waiting = below.advance()
        hasBelow = false
        own = 0
        if (!owns.hasNext && !waiting) return false
        val order =
          if (!owns.hasNext) 1
          else if (!waiting) -1
          else compareWithBelow(owns.upcoming)
        if (order <= 0) own = owns.advance()
        if (order >= 0) {
          hasBelow = true
          committedValue.set(below.value.base, below.value.at, below.value.length)
        }
        if (own == 0 || !isDelete(own)) return true
      }
      false
    }

    private def compareWithBelow(address: Int): Int = RecordOrder.compareKeys(
      owns.pages.base(address),
      owns.pages.keyOffset(address),
      owns.pages.keyLength(address),
      below.key.base,
      below.key.at,
      below.key.length)
  }
}
