package io.statestore.view

import java.io.File
import java.nio.file.Files
import java.util.concurrent.atomic.AtomicLong

import scala.collection.mutable
import scala.util.Random

import io.statestore.keygroup.{KeyGroups, PartitionKey}
import io.statestore.rocksdb.{NumRows, RocksDBView}
import org.apache.spark.sql.catalyst.expressions.{UnsafeProjection, UnsafeRow}
import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.types._
import org.apache.spark.unsafe.types.UTF8String
import org.apache.spark.unsafe.Platform
import org.rocksdb.{FlushOptions, Options, RocksDB}

/**
 * Random operations on a view against a model of sorted maps: puts, removes, merges, scans that
 * stay open and rows that are kept across writes, commits, aborts, roll-backs, spilling, compaction
 * and views that begin empty. Run with `heap` or `rocksdb`, or with `Outside` behind it for
 * pages outside of the heap, a seed and a number of batches; exits non-zero at the first
 * difference.
 */
object ViewModelCheck {
  private val valueSchema = new StructType().add("v", StringType)
  private val plain = ColumnFamily(
    0,
    "default",
    NoPrefixKeyStateEncoderSpec(new StructType().add("k", StringType)),
    valueSchema,
    multiValues = false,
    internal = false)
  private val ranged = ColumnFamily(
    1,
    "ranged",
    RangeKeyScanStateEncoderSpec(new StructType().add("t", LongType).add("k", StringType), Seq(0)),
    valueSchema,
    multiValues = false,
    internal = false)
  private val lists = ColumnFamily(
    2,
    "lists",
    NoPrefixKeyStateEncoderSpec(new StructType().add("k", StringType)),
    valueSchema,
    multiValues = true,
    internal = false)
  private val rangedLists = ranged.copy(id = 3, name = "rangedLists", multiValues = true)
  private val families = Seq(plain, ranged, lists, rangedLists)

  /** Bytes that hold no family's rows, and room for some 100 recent ones. */
  private val FewRecent = 320L << 10

  private type Entry = (Seq[Any], Vector[String])
  private type Rows = Map[Seq[Any], Vector[String]]
  private type Model = Map[String, Rows]

  def main(args: Array[String]): Unit = {
    val seed = args(1).toLong
    val batches = args(2).toInt
    val isInRocksDB = args(0).startsWith("rocksdb")
    val outside = if (args(0).endsWith("Outside")) new Outside(isInRocksDB) else null
    val check = new ViewModelCheck(seed, isInRocksDB, outside)
    try (1 to batches).foreach(check.batch) finally check.close()
    if (outside != null) outside.requireNothing()
    println(s"ok seed=$seed batches=$batches ${check.counts}")
  }

  /**
   * Memory outside of the heap; freed soon, so that a late reader shows. Where it ends in between,
   * a piece in a hundred is refused.
   */
  private final class Outside(ends: Boolean) extends OffHeapMemory.Budget {
    private val granted = new AtomicLong
    private var most = 0L
    private var asked = 0
    val memory = new OffHeapMemory(this, keptMs = 2L)

    override def grant(bytes: Long): Boolean = {
      asked += 1
      val isGranted = !ends || asked % 200 > 1 // it is asked twice
      if (isGranted) most = math.max(most, granted.addAndGet(bytes))
      isGranted
    }

    override def giveBack(bytes: Long): Unit = {
      granted.addAndGet(-bytes)
      ()
    }

    override def limit: String = "none"

    /** Once nothing is left of what was taken, of which there was something. */
    def requireNothing(): Unit = {
      val end = System.nanoTime() + 10000000000L
      while (granted.get > 0L && System.nanoTime() < end) Thread.sleep(5L)
      println(s"outsideBytes=$most leftBytes=${granted.get}")
    }
  }

  private def projection(schema: StructType): UnsafeProjection = UnsafeProjection.create(schema)

  private final class ViewModelCheck(seed: Long, isInRocksDB: Boolean, outside: Outside) {
    private val random = new Random(seed)
    private val keyGroups = new KeyGroups(64)
    private val noRows: Model = families.map(_.name -> Map.empty[Seq[Any], Vector[String]]).toMap
    private var model = noRows
    private var previous: Model = _
    private val models = mutable.HashMap.empty[Long, Model]
    private val directories = mutable.ArrayBuffer.empty[File]
    private var commits = 0
    private var rollBacks = 0
    private var spills = 0
    private var compactions = 0
    private var rows = 0L
    private var adopted = 0
    private var opened = 0
    private var followed = 0
    private var forgotten = 0
    private var closed = 0
    private var numViews = 0
    private val keyOf = families.map(f => f.name -> projection(f.spec.keySchema)).toMap
    private val toValue = projection(valueSchema)
    private var view = newView()

    def counts: String = s"rollBacks=$rollBacks spilledRuns=$spills " +
      s"compactions=$compactions rowsWritten=$rows " +
      s"commits=$commits opened=$opened followed=$followed adopted=$adopted " +
      s"forgotten=$forgotten closed=$closed"

    /** In RocksDB: with caches of no row, of a few, so that most reads go behind it, and of all. */
    private def newView(cacheBytes: Option[Long] = None): WorkingView = {
      numViews += 1
      val start = ViewVersion(0, null, null, rescalable = true)
      if (isInRocksDB) {
        new RocksDBView(
          start,
          64,
          null,
          version => (directoryOf(version), 2),
          families,
          Some(NumRows(0L, 0L)),
          partition = 0,
          filter = 0, // until a directory is asked for
          blockCacheBytes = 1L << 20,
          rowCacheBytes =
            cacheBytes.getOrElse(Seq(0L, 2L << 20, 4L << 20, 1L << 30)(numViews % 4)),
          if (outside == null) null else outside.memory)
      } else {
        val view = new PagedView(start, 64, if (outside == null) null else outside.memory)
        families.foreach(view.addFamily(_))
        view
      }
    }

    /** Writes a version to RocksDB, as the engine lays it out, with rows of another partition. */
    private def directoryOf(version: ViewVersion): String = {
      val directory = Files.createTempDirectory("statestore-view").toFile
      directories += directory
      val options = new Options().setCreateIfMissing(true)
      val database = RocksDB.open(options, directory.getPath)
      try {
        families.foreach { family =>
          val codec = new KeyCodec(family)
          def put(keyGroup: Byte, key: Seq[Any], values: Vector[String]): Unit = {
            codec.encode(keyRow(family, key))
            val buffer = new ValueBuffer(family, codec.length)
            val value = new BytesRef
            values.iterator.map(valueRow).foreach { row =>
              if (family.multiValues) buffer.append(row)
              else value.set(row.getBaseObject, row.getBaseOffset, row.getSizeInBytes)
            }
            if (family.multiValues) buffer.show(value)
            database.put(
              Array[Byte](0, family.id.toByte) ++ bytesAt(codec.base, codec.at, codec.length),
              Array[Byte](0, keyGroup) ++ bytesAt(value.base, value.at, value.length))
          }
          models(version.number)(family.name).foreach { case (key, values) => put(0, key, values) }
          (0 until 60).foreach { i =>
            val key = if (family.ordered) Seq(i.toLong, "z") else Seq("foreign" + i)
            put(1, key, Vector("of another partition"))
          }
        }
        database.flush(new FlushOptions)
      } finally {
        database.close()
        options.close()
      }
      directory.getPath
    }

    private def bytesAt(base: AnyRef, at: Long, length: Int): Array[Byte] = {
      val bytes = new Array[Byte](length)
      Platform.copyMemory(base, at, bytes, Platform.BYTE_ARRAY_OFFSET.toLong, length.toLong)
      bytes
    }

    def close(): Unit = {
      view.retire()
      deleteDirectories()
    }

    /** As the engine does while a reader has them open. */
    private def deleteDirectories(): Unit = directories.filter(_.exists).foreach { directory =>
      directory.listFiles.foreach(_.delete())
      directory.delete()
    }

    def batch(number: Int): Unit = {
      deleteDirectories()
      // What each run has to have comes in turns; all else is drawn.
      val turn = number % 20
      // One whose records may be taken over: the view is empty, and one family is written, each key
      // once.
      val isAdopted = turn == 5
      val isRolledBack = turn == 8 || turn == 18
      // A batch of minutes puts the same few keys anew, until most of its records are replaced.
      val isLong = turn == 10
      // In RocksDB: each of these versions is opened, with a cache of no row, and with room for few
      // recent rows. Of the next ones, with less than that, none is.
      val isOpened = turn == 13 || turn == 14 || turn == 19
      val isFollowed = turn < 4 && number > 4
      val isCommitted = isAdopted || turn == 7 || turn == 17 || isOpened || isFollowed
      // Some batches read nothing but what they write.
      val isRead = !isInRocksDB || isOpened || isFollowed || random.nextBoolean()
      val isFree = !isLong && !isRolledBack && !isOpened && !isFollowed
      val isFirst =
        isAdopted || turn == 13 || turn == 19 || isFree && random.nextInt(8) == 0
      if (isFirst) {
        view.retire()
        view = newView(if (turn == 13) Some(0L) else if (turn == 19) Some(FewRecent) else None)
        model = noRows
        previous = null
      }
      if (isRolledBack || isFree && previous != null && random.nextInt(4) == 0) {
        view.rollBack()
        model = previous
        previous = null
        rollBacks += 1
        compareView(s"after roll back, batch $number")
      }
      val budget =
        if (isLong || isAdopted) 1L << 30 else Seq(20000L, 600000L, 1L << 30)(random.nextInt(3))
      val byKey = random.nextBoolean()
      val smallestShare = math.min(budget, Overlay.SmallestShare)
      val overlay = new Overlay(keyGroups, budget, () => scratchFile(), byKey, smallestShare)
      val states = families.map { family =>
        family.name -> new FamilyState(
          family,
          view.family(family.name),
          overlay,
          () => overlay.family(family, keyGroupOf(family), random.nextInt(40)))
      }.toMap
      var next = model
      val open = mutable.ArrayBuffer.empty[(Iterator[Entry], Seq[Entry])]
      val openLists = mutable.ArrayBuffer.empty[(Iterator[String], Vector[String])]
      val kept = mutable.ArrayBuffer.empty[(UnsafeRow, String)]
      // The records of a batch that writes a family without rows, and no other, may be taken over.
      val onlyFamily = isAdopted || isFirst && random.nextInt(8) > 0
      val onlyLists = !onlyFamily && !isLong && random.nextInt(4) == 0
      val written =
        if (onlyFamily) families(random.nextInt(2))
        else if (random.nextBoolean()) lists
        else rangedLists
      // Few enough that a view of RocksDB stays open, in about half of the batches.
      val areFew =
        onlyFamily || isInRocksDB && !isLong && !isOpened && (isFollowed || random.nextBoolean())
      val steps =
        if (isLong) 1000
        else if (isOpened) 200
        else 1 + random.nextInt(if (areFew) 20 else 400)
      var step = 0
      while (step < steps || isLong && overlay.numCompactions == 0) {
        step += 1
        val family =
          if (onlyFamily || onlyLists) written else families(random.nextInt(families.size))
        val state = states(family.name)
        val key =
          if (isAdopted) keyNumbered(family, step) else randomKey(family, if (isLong) 3 else 120)
        // A directory that is asked for in the middle makes rows of its own by the same projection.
        val row = keyRow(family, key).copy()
        val rowsOfFamily = next(family.name)
        // Where lists are what is written, most of it is appended while scans are open.
        val isAppend = onlyLists && random.nextInt(3) > 0
        val isPut = onlyFamily && (number % 2 == 0 || random.nextInt(8) > 0)
        val what =
          if (isAdopted || isOpened && step == 1) 9
          else if (isAppend) 2
          else if (isPut) 3 + random.nextInt(7)
          else random.nextInt(10)
        what match {
          case 0 | 1 =>
            val isOnlyHere =
              rowsOfFamily.contains(key) && !model(family.name).contains(key)
            val before = if (isOnlyHere) overlay.writtenFamily(family.id).table.size else 0
            state.remove(row)
            if (isOnlyHere) {
              val left = overlay.writtenFamily(family.id).table.size
              same(s"keys of the overlay, batch $number", left, before - 1)
              forgotten += 1
            }
            next = next.updated(family.name, rowsOfFamily - key)
          case 2 if family.multiValues && !isFollowed =>
            val values = Vector.fill(1 + random.nextInt(3))(randomValue())
            state.putValues(row, values.iterator.map(valueRow), append = true)
            next = next.updated(
              family.name,
              rowsOfFamily.updated(key, rowsOfFamily.getOrElse(key, Vector.empty) ++ values))
          case 3 =>
            val found = Option(state.get(row))
            same(s"get batch $number", found.map(text), rowsOfFamily.get(key).map(_.head))
            found.foreach(shown => kept += ((shown, text(shown))))
            same("keyExists", state.keyExists(row), rowsOfFamily.contains(key))
            if (family.multiValues) {
              // Read to its end some writes later.
              val all = state.values(row).map(text)
              openLists += ((all, rowsOfFamily.getOrElse(key, Vector.empty)))
            }
          case 4 if random.nextInt(8) == 0 =>
            val found = pairs(family, state.iteratorWithMultiValues())
            open += ((found, expected(family, rowsOfFamily)))
          case 5 if family.ordered && random.nextInt(4) == 0 =>
            val low = random.nextInt(50).toLong
            val isOpenAbove = random.nextInt(4) == 0
            val from = state.keyCodec.encodePrefix(timeRow(low))
            val until =
              if (isOpenAbove) null else state.keyCodec.encodePrefix(timeRow(low + 10))
            val scan = state.scanWithMultiValues(from, until)
            val found = pairs(family, scan)
            val wanted = expected(family, rowsOfFamily).filter { case (k, _) =>
              val t = k.head.asInstanceOf[Long]
              t >= low && (isOpenAbove || t < low + 10)
            }
            if (random.nextInt(3) == 0) {
              // Few are read to their end.
              same("first of a scan", found.take(1).toSeq.map(_._1), wanted.take(1).map(_._1))
              scan.close()
              closed += 1
            } else {
              open += ((found, wanted))
            }
          case 6 if !family.multiValues =>
            // Written, read, and written again while the reader keeps the row.
            val (first, second) =
              if (isFollowed) (smallValue(), smallValue()) else (randomValue(), randomValue())
            state.put(row, valueRow(first))
            kept += ((state.get(row), first))
            state.put(row, valueRow(second))
            next = next.updated(family.name, rowsOfFamily.updated(key, Vector(second)))
          case _ =>
            val value =
              if (isOpened && step == 1) "x" * 100000
              else if (isFollowed) smallValue()
              else randomValue()
            state.put(row, valueRow(value))
            next = next.updated(family.name, rowsOfFamily.updated(key, Vector(value)))
        }
        if (open.nonEmpty && random.nextInt(5) == 0) drain(open.remove(0))
        if (openLists.nonEmpty && random.nextInt(3) == 0) {
          drainList(openLists.remove(random.nextInt(openLists.size)))
        }
      }
      open.foreach(drain)
      openLists.foreach(drainList)
      if (isRead) families.foreach { family =>
        val found = pairs(family, states(family.name).iteratorWithMultiValues())
        drain((found, expected(family, next(family.name))))
      }
      kept.foreach { case (shown, was) => same(s"kept row batch $number", text(shown), was) }
      spills += overlay.numRuns
      compactions += overlay.numCompactions
      val numDirectories = directories.size
      val isTaken = isCommitted || random.nextInt(5) > 0
      if (isTaken) {
        commit(overlay, byKey, number, next)
      }
      if (isRead) compareView(s"after batch $number")
      if (isTaken && isRead) {
        if (directories.size > numDirectories) opened += 1 else followed += 1
      }
    }

    private def commit(overlay: Overlay, byKey: Boolean, number: Int, written: Model): Unit = {
      // A state variable is removed, for good or until the next batch rolls back.
      val isRemoved = !isInRocksDB && Seq(7, 9, 11).contains(number % 20)
      val removed = if (isRemoved) Set(lists.name) else Set.empty[String]
      val next = written ++ removed.map(_ -> Map.empty[Seq[Any], Vector[String]])
      val changes = mutable.LinkedHashMap.empty[Int, FamilyChanges]
      var last: (Int, Int, Int) = null
      val slots = new Array[Int](RecordBlock.Capacity)
      overlay.visitSorted { block =>
        val family = block.family
        val change = changes.getOrElseUpdate(family.family.id, new FamilyChanges(family))
        val below = view.family(family.family.name)
        if (below == null) java.util.Arrays.fill(slots, -1) // a family that is new, or was removed
        else below.findSlots(overlay.pages, block.addresses, block.length, slots)
        (0 until block.length).foreach { i =>
          val address = block.addresses(i)
          val rank = if (byKey) 0 else keyGroups.rank(block.keyGroups(i))
          val order = (rank, family.family.id, address)
          if (last != null) {
            val byPlace = Ordering[(Int, Int)].compare((last._1, last._2), (order._1, order._2))
            val inOrder = byPlace < 0 || byPlace == 0 &&
              RecordOrder.compareRecords(overlay.pages, last._3, overlay.pages, address) < 0
            same("file order", inOrder, true)
          }
          last = order
          below match {
            case heap: PagedFamily =>
              same("slot", slots(i), heap.table.findSlot(overlay.pages, address))
            case _ =>
          }
          val op = FamilyChanges.netOp(overlay.pages, address, slots(i))
          if (op >= 0) {
            change.add(address, slots(i))
            rows += 1
            if (isInRocksDB && op == RecordPages.Merge && random.nextInt(20) > 0) {
              val (key, value) = (new BytesRef, new BytesRef)
              val pages = overlay.pages
              key.set(pages.base(address), pages.keyOffset(address), pages.keyLength(address))
              family.value(address, value)
              change.putTogether(below, key, value)
            }
          }
        }
      }
      val id = view.version.number + 1
      val version = ViewVersion(id, s"c$number", s"l$number", rescalable = true)
      models(id) = next
      adopted += changes.values.count { change =>
        model(change.overlay.family.name).isEmpty && change.isAdoptable
      }
      val (left, kept) = changes.values.toSeq.partition(c => removed(c.overlay.family.name))
      rows -= left.map(_.length.toLong).sum
      view.advance(new ViewAdvance(version, families.filterNot(f => removed(f.name)), kept))
      commits += 1
      previous = model
      model = next
    }

    private def compareView(when: String): Unit = {
      same(s"rows $when", view.numRows, model.values.map(_.size).sum.toLong)
      families.foreach(compareFamily(_, when))
      view.open()
      view.release() // a task ends
    }

    private def compareFamily(family: ColumnFamily, when: String): Unit = {
      val overlay = new Overlay(keyGroups, 1L << 30, () => scratchFile())
      val state = new FamilyState(family, view.family(family.name), overlay, () => null)
      view.family(family.name) match {
        case heap: PagedFamily =>
          checkIndex(heap, when)
          same(s"rows of ${family.name} $when", heap.table.size, model(family.name).size)
        case _ =>
      }
      drain((pairs(family, state.iteratorWithMultiValues()), expected(family, model(family.name))))
      model(family.name).foreach { case (key, values) =>
        same(s"get $when", text(state.get(keyRow(family, key))), values.head)
      }
    }

    /** Every record is found by its key, where the index says, and no two records share a byte. */
    private def checkIndex(family: PagedFamily, when: String): Unit = {
      val all = family.table.liveAddresses.sortWith(Integer.compareUnsigned(_, _) < 0)
      all.foreach { address =>
        val slot = family.table.findRecord(address)
        val isFound = slot >= 0 && family.table.addressAt(slot) == address
        same(s"index of ${family.family.name} $when", isFound, true)
        same(s"flags $when", family.pages.flags(address), 0)
      }
      all.zip(all.drop(1)).foreach { case (left, right) =>
        if ((left >>> 15) == (right >>> 15)) {
          same(s"overlap $when", left + family.pages.units(left) <= right, true)
        }
      }
    }

    private def drainList(open: (Iterator[String], Vector[String])): Unit =
      same("values", open._1.toVector, open._2)

    private def drain(open: (Iterator[Entry], Seq[Entry])): Unit = {
      val (found, wanted) = open
      val all = found.toVector
      val isOrdered = wanted.headOption.exists(_._1.size == 2)
      val got = if (isOrdered) all else all.sortBy(_._1.head.toString)
      same("keys of a scan", got.map(_._1), wanted.map(_._1).toVector)
      got.zip(wanted).foreach { case (one, other) => same("row of a scan", one, other) }
    }

    /** What a scan returns: in key order for the ordered family, sorted by key for the others. */
    private def expected(family: ColumnFamily, rows: Rows): Seq[Entry] =
      if (family.ordered) {
        // Ties on the ordering column go by the bytes of the remaining row: one letter.
        rows.toSeq.sortBy { case (key, _) => (key.head.asInstanceOf[Long], key(1).toString) }
      } else {
        rows.toSeq.sortBy(_._1.head.toString)
      }

    private def pairs(family: ColumnFamily, found: Iterator[UnsafeRowPair]): Iterator[Entry] = {
      val source = found.buffered
      new Iterator[Entry] {
        override def hasNext: Boolean = source.hasNext
        override def next(): Entry = {
          val key = keyText(family, source.head.key)
          val values = Vector.newBuilder[String]
          while (source.hasNext && keyText(family, source.head.key) == key) {
            values += text(source.next().value)
          }
          (key, values.result())
        }
      }
    }

    private def keyNumbered(family: ColumnFamily, number: Int): Seq[Any] =
      if (family.ordered) Seq(number.toLong, "a") else Seq("key" + number)

    private def randomKey(family: ColumnFamily, number: Int = 120): Seq[Any] =
      if (family.ordered) {
        Seq(random.nextInt((number + 1) / 2).toLong, ('a' + random.nextInt(4)).toChar.toString)
      } else Seq("key" + random.nextInt(number))

    private def randomValue(): String = random.nextInt(40) match {
      case 0 => "x" * (100000 + random.nextInt(100000))
      case 1 => "y" * random.nextInt(5000)
      case _ => smallValue()
    }

    private def smallValue(): String = "v" + random.nextInt(1000)

    private def keyRow(family: ColumnFamily, key: Seq[Any]): UnsafeRow =
      keyOf(family.name)(InternalRow.fromSeq(key.map {
        case s: String => UTF8String.fromString(s)
        case other => other
      }))

    private val toTime = projection(new StructType().add("t", LongType))
    private def timeRow(t: Long): UnsafeRow = toTime(InternalRow(t))

    private def keyGroupOf(family: ColumnFamily) =
      PartitionKey.function("default", true, family.name, family.spec, 64)

    private def valueRow(value: String): UnsafeRow =
      toValue(InternalRow(UTF8String.fromString(value)))

    private def text(row: UnsafeRow): String =
      if (row == null) null else row.getUTF8String(0).toString

    private def keyText(family: ColumnFamily, row: UnsafeRow): Seq[Any] =
      if (family.ordered) Seq(row.getLong(0), row.getUTF8String(1).toString)
      else Seq(row.getUTF8String(0).toString)

    private def same(what: String, found: Any, wanted: Any): Unit = if (found != wanted) {
      def short(value: Any) = value.toString.replaceAll("([xy])\\1{9,}", "$1...").take(600)
      System.err.println(s"differs: $what seed=$seed")
      System.err.println(s" found=${short(found)}\n wanted=${short(wanted)}")
      System.exit(1)
    }

    private def scratchFile(): File = {
      val path = Files.createTempFile("statestore-view", ".run")
      Files.delete(path)
      path.toFile
    }
  }
}
