package io.statestore.view

import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.execution.streaming.state.{StateStoreIterator, UnsafeRowPair}

/**
 * One column family as a store handle sees it: the committed rows with the handle's own writes on
 * top. Rows it returns are fresh headers over bytes that stay until the task ends. Iterators show
 * the state at their creation, whatever is written while they are open.
 */
private[statestore] final class FamilyState(
    val family: ColumnFamily,
    committed: ViewFamily,
    overlay: Overlay,
    newOverlayFamily: () => OverlayFamily) {
  import RecordPages._

  private val codec = new KeyCodec(family)
  private val numValueFields = family.valueSchema.length
  private val ref = new BytesRef
  private var written: OverlayFamily = _

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
        overlay.handOut(own)
        overlay.value(own, ref)
        valueRow(ref)
      }
    } else {
      val address = if (committed == null) 0 else committed.find(codec, hash)
      if (address == 0) null else committedValue(address)
    }
  }

  def keyExists(key: UnsafeRow): Boolean = {
    codec.encode(key)
    val hash = RecordTable.hashKey(codec.base, codec.at, codec.length)
    val own = findOwn(hash)
    if (own != 0) (overlay.pages.flags(own) & OpMask) != Delete
    else committed != null && committed.find(codec, hash) != 0
  }

  def values(key: UnsafeRow): Iterator[UnsafeRow] = {
    codec.encode(key)
    val hash = RecordTable.hashKey(codec.base, codec.at, codec.length)
    overlay.pin()
    values(findOwn(hash), hash)
  }

  def put(key: UnsafeRow, value: UnsafeRow): Unit = {
    val hash = startWrite(key)
    if (family.multiValues) written.putValues(key, codec, hash, Put, Iterator.single(value))
    else written.put(key, codec, hash, value)
  }

  def putValues(key: UnsafeRow, values: Iterator[UnsafeRow], append: Boolean): Unit = {
    val hash = startWrite(key)
    written.putValues(key, codec, hash, if (append) Merge else Put, values)
  }

  def remove(key: UnsafeRow): Unit = {
    val hash = startWrite(key)
    written.delete(key, codec, hash)
  }

  /** Removes every key in `[from, until)`, bounds encoded, null for open; returns how many. */
  def removeRange(from: Array[Byte], until: Array[Byte]): Int = {
    val cursor = pairs(from, until)
    var removed = 0
    while (cursor.advance()) {
      remove(cursor.key)
      removed += 1
    }
    removed
  }

  def removeAll(): Int = {
    val cursor = allPairs()
    var removed = 0
    while (cursor.advance()) {
      remove(cursor.key)
      removed += 1
    }
    removed
  }

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

  private def valueRow(from: BytesRef): UnsafeRow = {
    val row = new UnsafeRow(numValueFields)
    row.pointTo(from.base, from.at, from.length)
    row
  }

  private def committedValue(address: Int): UnsafeRow = {
    val pages = committed.pages
    val row = new UnsafeRow(numValueFields)
    row.pointTo(pages.base(address), pages.valueOffset(address), pages.valueLength(address))
    row
  }

  private def values(own: Int, hash: Int): Iterator[UnsafeRow] = {
    val op = if (own == 0) Merge else overlay.pages.flags(own) & OpMask
    val below =
      if (op != Merge || committed == null) Iterator.empty
      else committedRows(committed.find(codec, hash))
    val above = if (own == 0 || op == Delete) Iterator.empty else ownRows(overlay.pages, own)
    below ++ above
  }

  private def committedRows(address: Int): Iterator[UnsafeRow] =
    if (address == 0) {
      Iterator.empty
    } else {
      val pages = committed.pages
      rowsOf(pages.base(address), pages.valueOffset(address), pages.valueLength(address))
    }

  private def ownRows(pages: RecordPages, address: Int): Iterator[UnsafeRow] = {
    overlay.valueIn(pages, address, ref)
    rowsOf(ref.base, ref.at, ref.length)
  }

  private def rowsOf(base: AnyRef, at: Long, length: Int): Iterator[UnsafeRow] =
    if (family.multiValues) {
      MultiValues.rows(base, at, length, numValueFields)
    } else {
      val row = new UnsafeRow(numValueFields)
      row.pointTo(base, at, length)
      Iterator.single(row)
    }

  private def firstValues(cursor: PairCursor): StateStoreIterator[UnsafeRowPair] =
    new StateStoreIterator(new Iterator[UnsafeRowPair] {
      private var ready = cursor.advance()

      override def hasNext: Boolean = ready

      override def next(): UnsafeRowPair = {
        if (!ready) throw new NoSuchElementException("no more rows")
        val pair = new UnsafeRowPair(cursor.key, cursor.values.next())
        ready = cursor.advance()
        pair
      }
    })

  private def everyValue(cursor: PairCursor): StateStoreIterator[UnsafeRowPair] =
    new StateStoreIterator(
      Iterator
        .continually(cursor)
        .takeWhile(_.advance())
        .flatMap { at =>
          val key = at.key
          at.values.map(new UnsafeRowPair(key, _))
        })

  /** Every key, ordered where the family is. */
  private def allPairs(): PairCursor =
    if (family.ordered) pairs(null, null) else new UnorderedCursor

  private def pairs(from: Array[Byte], until: Array[Byte]): PairCursor =
    new OrderedCursor(from, until)

  /** Walks the keys of the state at its creation. */
  private abstract class PairCursor {

    /** Records of the current key in the view and in the overlay; 0 where there is none. */
    protected var below = 0
    protected var own = 0
    protected val ownPages: RecordPages = {
      overlay.pin()
      overlay.pages.frozen
    }

    def advance(): Boolean

    def key: UnsafeRow =
      if (own != 0) codec.decode(ownPages, own) else codec.decode(committed.pages, below)

    def values: Iterator[UnsafeRow] =
      if (own == 0) {
        committedRows(below)
      } else {
        committedRows(if ((ownPages.flags(own) & OpMask) == Merge) below else 0) ++
          ownRows(ownPages, own)
      }

    protected def isDelete(address: Int): Boolean = (ownPages.flags(address) & OpMask) == Delete
  }

  /** First the handle's own records, then the pages of the view without the keys in the overlay. */
  private final class UnorderedCursor extends PairCursor {
    private val ownTable =
      if (written == null || written.isEmpty) null else written.table.frozen
    private val ownAddresses = if (ownTable == null) Array.emptyIntArray else ownTable.liveAddresses
    private var next = 0
    private val pages = if (committed == null) null else committed.pages
    private var page = 0
    private var unit = 1

    override def advance(): Boolean = advanceOwn() || advanceView()

    private def advanceOwn(): Boolean = {
      while (next < ownAddresses.length) {
        own = ownAddresses(next)
        next += 1
        if (!isDelete(own)) {
          below = if (committed == null) 0 else committed.table.findIn(ownPages, own)
          return true
        }
      }
      own = 0
      false
    }

    private def advanceView(): Boolean = {
      if (pages == null) return false
      while (page < pages.pageCount) {
        while (unit < pages.endOfPage(page)) {
          below = (page << PageShift) | unit
          unit += pages.units(below)
          if ((pages.flags(below) & Dead) == 0 &&
            (ownTable == null || ownTable.findIn(pages, below) == 0)) return true
        }
        page += 1
        unit = 0
      }
      false
    }
  }

  /** Merges the ordered indexes of view and overlay. */
  private final class OrderedCursor(from: Array[Byte], until: Array[Byte]) extends PairCursor {
    private val ownAddresses = {
      val found = new scala.collection.mutable.ArrayBuilder.ofInt
      if (written != null) {
        val cursor = written.sorted.range(from, until)
        var address = cursor.next()
        while (address != 0) {
          found += address
          address = cursor.next()
        }
      }
      found.result()
    }
    private var next = 0
    private val view = if (committed == null) null else committed.sorted.range(from, until)
    private var nextBelow = if (view == null) 0 else view.next()

    override def advance(): Boolean = {
      while (next < ownAddresses.length || nextBelow != 0) {
        val order =
          if (next >= ownAddresses.length) 1
          else if (nextBelow == 0) -1
          else {
            RecordOrder.compareRecords(ownPages, ownAddresses(next), committed.pages, nextBelow)
          }
        own = 0
        below = 0
        if (order <= 0) {
          own = ownAddresses(next)
          next += 1
        }
        if (order >= 0) {
          below = nextBelow
          nextBelow = view.next()
        }
        if (own == 0 || !isDelete(own)) return true
      }
      false
    }
  }
}
