package io.statestore.view

import java.io.File
import java.nio.file.Files

import io.statestore.keygroup.{KeyGroups, PartitionKey}
import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions.{UnsafeProjection, UnsafeRow}
import org.apache.spark.sql.execution.streaming.state.RangeKeyScanStateEncoderSpec
import org.apache.spark.sql.types.{BinaryType, LongType, StructType}

/**
 * Appends rows to a list, one by one, while state is read in several ways; prints what the heap
 * holds of the writes, what the overlay counts of it, and the bytes of the rows. With a budget, it
 * prints the most that was held. With `values`, a row of a map is put anew each time, in place of
 * the list that grows. With `many`, there are many lists.
 */
object ListHeapCheck {
  private val valueSchema = new StructType().add("v", BinaryType)
  private val toValue = UnsafeProjection.create(valueSchema)
  private val keySchema = new StructType().add("t", LongType).add("k", LongType)
  private val toKey = UnsafeProjection.create(keySchema)
  private val numRows = 2000
  private val numPuts = 40000
  private val rowBytes = 200

  private val list = ColumnFamily(
    1,
    "list",
    RangeKeyScanStateEncoderSpec(keySchema, Seq(0)),
    valueSchema,
    multiValues = true,
    internal = false)
  private val map = list.copy(id = 2, name = "map", multiValues = false)

  /** A store with a list and a map, of which this batch has written one row each. */
  private final class Store(budgetBytes: Long) {
    val overlay = new Overlay(new KeyGroups(64), budgetBytes, () => scratchFile())
    val lists: FamilyState = stateOf(list)
    val maps: FamilyState = stateOf(map)
    val key: UnsafeRow = toKey(InternalRow(1L, 1L)).copy()
    private val other = toKey(InternalRow(2L, 1L)).copy()
    lists.putValues(other, Iterator.single(row(0)), append = true)
    maps.put(other, row(0))

    private def stateOf(family: ColumnFamily): FamilyState = {
      val keyGroup = PartitionKey.function(
        "default", useColumnFamilies = true, family.name, family.spec, 64)
      new FamilyState(family, null, overlay, () => overlay.family(family, keyGroup))
    }

    def append(number: Int): Unit =
      lists.putValues(key, Iterator.single(row(number)), append = true)

    def readOther(): Unit = lists.values(other).foreach(_ => ())

    def readOwn(): Unit = lists.values(key).foreach(_ => ())

    def put(number: Int): Unit = maps.put(key, row(number))

    def readOtherOfMap(): Unit = maps.get(other)

    def readOwnOfMap(): Unit = maps.get(key)

    def scanMap(): Unit = maps.iterator().foreach(_ => ())

    def scanLists(): Unit = lists.iteratorWithMultiValues().foreach(_ => ())

    /** Removes the first element, as a list with a time to live does when it has expired. */
    def expireFirst(): Unit = lists.values(key).drop(1).zipWithIndex.foreach { case (value, i) =>
      lists.putValues(key, Iterator.single(value), append = i > 0)
    }

    def check(wanted: Iterator[Int]): Unit =
      lists.values(key).zipAll(wanted.map(row), null, null).foreach { case (found, expected) =>
        require(found == expected, s"differs: found=$found, expected=$expected")
      }
  }

  private def appended(before: Store => Unit, each: Store => Unit)(store: Store): Unit = {
    before(store)
    (1 to numRows).foreach { number =>
      each(store)
      store.append(number)
    }
    store.check((1 to numRows).iterator)
  }

  private def expired(store: Store): Unit = {
    (0 to numRows).foreach(store.append)
    store.expireFirst()
    store.check((1 to numRows).iterator)
  }

  private val nothing: Store => Unit = _ => ()
  private val cases = Seq[(String, Store => Unit)](
    "nothingRead" -> appended(nothing, nothing),
    "otherListReadBefore" -> appended(_.readOther(), nothing),
    "mapScannedBefore" -> appended(_.scanMap(), nothing),
    "listsScannedBefore" -> appended(_.scanLists(), nothing),
    "otherListReadEachTime" -> appended(nothing, _.readOther()),
    "mapScannedEachTime" -> appended(nothing, _.scanMap()),
    "listReadEachTime" -> appended(nothing, _.readOwn()),
    "listsScannedEachTime" -> appended(nothing, _.scanLists()),
    "expired" -> expired)

  private def putAnew(each: Store => Unit): Long = {
    val store = new Store(1L << 40)
    (1 to numPuts).foreach { number =>
      each(store)
      store.put(number)
    }
    require(store.maps.get(store.key) == row(numPuts), "differs")
    store.overlay.heapBytes
  }

  private val readers = Seq[(String, Store => Unit)](
    "nothingRead" -> nothing,
    "olderRowRead" -> (_.readOtherOfMap()),
    "rowRead" -> (_.readOwnOfMap()),
    "mapScanned" -> (_.scanMap()))

  def main(args: Array[String]): Unit = if (args(0) == "budget") {
    spill(args(1).toLong)
  } else if (args(0) == "many") {
    spillMany(args(1).toLong, args(2).toInt, args(3).toInt, args(4).toInt)
  } else if (args(0) == "values") {
    readers.foreach { case (name, each) =>
      println(s"$name counted=${putAnew(each)} payload=${numPuts * rowBytes}")
    }
  } else {
    cases.foreach { case (name, write) =>
      heldBy(write) // loads classes
      val (held, counted) = heldBy(write)
      println(s"$name held=$held counted=$counted payload=${numRows * rowBytes}")
    }
  }

  private def heldBy(write: Store => Unit): (Long, Long) = {
    val store = new Store(1L << 40)
    val before = usedHeap()
    write(store)
    val held = usedHeap() - before
    (held, store.overlay.heapBytes)
  }

  /** What is held once threads of the JVM's and of Spark's have let go what they held to start. */
  private def usedHeap(): Long =
    Iterator.continually(usedNow()).sliding(3).map(_.toSeq)
      .find(found => found.max - found.min < 16384).get.last

  private def usedNow(): Long = {
    Thread.sleep(50)
    System.gc()
    val runtime = Runtime.getRuntime
    runtime.totalMemory - runtime.freeMemory
  }

  /** Appends many times the budget to one list, behind a read. */
  private def spill(budgetBytes: Long): Unit = {
    val store = new Store(budgetBytes)
    store.scanLists()
    val rows = (20 * budgetBytes / rowBytes).toInt
    var most = 0L
    (1 to rows).foreach { number =>
      store.append(number)
      most = math.max(most, store.overlay.heapBytes)
    }
    store.check((1 to rows).iterator)
    println(s"most=$most scratch=$scratchFiles payload=${rows.toLong * rowBytes}")
  }

  /** Appends a row to each of many lists in turn, several times. */
  private def spillMany(budgetBytes: Long, numLists: Int, numRows: Int, valueBytes: Int): Unit = {
    def key(number: Int) = toKey(InternalRow(3L, number.toLong))
    def value(number: Int) =
      toValue(InternalRow(java.util.Arrays.copyOf(Array(number.toByte), valueBytes))).copy()
    val store = new Store(budgetBytes)
    val before = usedHeap()
    for (round <- 1 to numRows; number <- 1 to numLists) {
      val rows = Iterator.single(value(number + round))
      store.lists.putValues(key(number), rows, append = true)
    }
    val held = usedHeap() - before
    (1 to numLists).foreach { number =>
      val expected = (1 to numRows).map(round => value(number + round))
      require(store.lists.values(key(number)).toSeq == expected, s"key $number")
    }
    println(s"held=$held counted=${store.overlay.heapBytes} runs=${store.overlay.numRuns}")
  }

  private def row(number: Int): UnsafeRow = {
    val bytes = java.util.Arrays.copyOf(number.toString.getBytes, rowBytes)
    toValue(InternalRow(bytes)).copy()
  }

  private var scratchFiles = 0

  private def scratchFile(): File = {
    scratchFiles += 1
    val path = Files.createTempFile("statestore-lists", ".run")
    Files.delete(path)
    path.toFile
  }
}
