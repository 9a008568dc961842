package io.statestore.rocksdb

import java.io.{File, IOException}
import java.nio.file.Files
import java.util.concurrent.atomic.AtomicLong

import scala.collection.mutable
import scala.util.Random

import io.statestore.keygroup.{KeyGroups, PartitionKey}
import io.statestore.view._
import org.apache.spark.sql.catalyst.expressions.{UnsafeProjection, UnsafeRow}
import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.types._
import org.apache.spark.unsafe.types.UTF8String
import org.apache.spark.unsafe.Platform

/**
 * Random reads and committed batches on row caches of several budgets, on the heap and outside of
 * it, where a piece of memory in a hundred is refused, against a model, a map in RocksDB's place,
 * whose rows cannot always be read to the end. Run with a seed and a number of batches; exits
 * non-zero at the first difference.
 */
object RowCacheCheck {
  private val schema = new StructType().add("s", StringType)
  private val spec = NoPrefixKeyStateEncoderSpec(schema)
  private val budgets = Seq(0L, 300L << 10, 1L << 20, 1L << 30)
  private var misses = 0L
  private var absents = 0L
  private var hits = 0L
  private var loads = 0L
  private var wholes = 0L
  private var outgrown = 0L
  private var unread = 0L

  private val granted = new AtomicLong
  private var asked = 0
  private val memory = new OffHeapMemory(
    new OffHeapMemory.Budget {
      override def grant(bytes: Long): Boolean = {
        asked += 1
        val isGranted = asked % 200 > 1 // it is asked twice
        if (isGranted) granted.addAndGet(bytes)
        isGranted
      }

      override def giveBack(bytes: Long): Unit = {
        granted.addAndGet(-bytes)
        ()
      }

      override def limit: String = "none"
    },
    keptMs = 2L)

  def main(args: Array[String]): Unit = {
    val seed = args(0).toLong
    val batches = args(1).toInt
    for {
      budget <- budgets
      beganEmpty <- Seq(true, false)
      multiValues <- Seq(true, false)
      outside <- Seq(null, memory)
    } {
      val check = new RowCacheCheck(seed, budget, beganEmpty, multiValues, outside)
      (1 to batches).foreach(check.batch(_))
      check.close()
    }
    shareBudget(seed, batches)
    Seq(null, memory).foreach(keepFewRows(seed, _))
    keepLargeValuesOut(seed)
    println(s"ok seed=$seed batches=$batches misses=$misses absents=$absents hits=$hits " +
      s"loads=$loads wholes=$wholes outgrown=$outgrown unread=$unread left=$left")
  }

  /** Bytes outside of the heap that nobody freed. */
  private def left: Long = {
    val end = System.nanoTime() + 10000000000L
    while (granted.get > 0L && System.nanoTime() < end) Thread.sleep(5L)
    granted.get
  }

  /** Four caches with more rows than the budget: what one has beyond its part it gives back. */
  private def shareBudget(seed: Long, batches: Int): Unit = {
    val budget = 4L << 20
    val checks = (0 until 4).map(i => new RowCacheCheck(seed + i, budget, true, false, null))
    // The first has grown before the others begin.
    (1 to batches).foreach(checks.head.batch(_))
    val alone = checks.head.bytes
    (1 to batches).foreach(number => checks.foreach(_.batch(number)))
    checks.foreach(_.batch(0, commits = true))
    val held = checks.map(_.bytes).sum
    if (held > budget + checks.size * SlackBytes) {
      System.err.println(s"more than the budget: seed=$seed held=$held alone=$alone")
      System.exit(1)
    }
    checks.foreach(_.close())
  }

  /** Shares too small for generations: each cache has all of its ten rows, in one page. */
  private def keepFewRows(seed: Long, outside: OffHeapMemory): Unit = {
    val checks = (0 until 17).map(i => new RowCacheCheck(seed + i, 4L << 20, true, false, outside))
    for (round <- 1 to 2; number <- 0 until 10; check <- checks) {
      check.putAndRead(s"key$number", s"value$round")
    }
    val numWhole = checks.count(_.isWhole)
    if (numWhole < checks.size) {
      System.err.println(s"few rows: seed=$seed whole=$numWhole isOutside=${outside != null}")
      System.exit(1)
    }
    checks.foreach(_.close())
  }

  /** Values of half the budget, read and written: none of four caches keeps one. */
  private def keepLargeValuesOut(seed: Long): Unit = {
    val budget = 4L << 20
    val checks = (0 until 4).map(i => new RowCacheCheck(seed + i, budget, false, false, null))
    (0 until 10).foreach(number => checks.foreach(_.putAndRead(s"key$number", "x" * (2 << 20))))
    val held = checks.map(_.bytes).sum
    if (held > budget) {
      System.err.println(s"large values: seed=$seed held=$held")
      System.exit(1)
    }
    checks.foreach(_.close())
  }

  // A page, and the largest value.
  private val SlackBytes = 512L << 10

  private final class RowCacheCheck(
      seed: Long,
      budget: Long,
      beganEmpty: Boolean,
      multiValues: Boolean,
      outside: OffHeapMemory) {
    private val random = new Random(seed)
    private val keyGroups = new KeyGroups(64)
    private val family = ColumnFamily(0, "default", spec, schema, multiValues, internal = false)
    private val cache = new RowCache(budget, if (beganEmpty) noRows else null)
    private val toRow = UnsafeProjection.create(schema)
    private val rocksDB = mutable.HashMap.empty[Seq[Byte], Array[Byte]]
    private var model = Map.empty[String, Vector[String]]
    // The bytes that a reader was shown, and what they were.
    private val shown = mutable.ArrayBuffer.empty[(BytesRef, Seq[Byte])]

    private def noRows = new PagedFamily(family, outside = outside)

    private val committed = new CommittedFamily {
      override def get(base: AnyRef, at: Long, length: Int, hash: Int, into: BytesRef): Boolean = {
        val inRocksDB = rocksDB.get(copy(base, at, length).toSeq)
        val answer = cache.find(base, at, length, hash, into)
        answer match {
          case RowCache.Found =>
            hits += 1
            same("row", Some(bytesOf(into)), inRocksDB.map(_.toSeq))
          case RowCache.Absent =>
            absents += 1
            same("absent row", None, inRocksDB.map(_.toSeq))
          case _ =>
            misses += 1
            inRocksDB match {
              case None => cache.putAbsent(base, at, length, hash)
              case Some(bytes) =>
                into.set(bytes, Platform.BYTE_ARRAY_OFFSET.toLong, bytes.length)
                cache.put(base, at, length, hash, into)
            }
        }
        if (inRocksDB.isDefined) {
          val ref = new BytesRef
          ref.set(into.base, into.at, into.length)
          shown += ((ref, bytesOf(ref)))
        }
        inRocksDB.isDefined
      }

      override def rows(): CommittedCursor = throw new UnsupportedOperationException("rows")

      override def range(from: Array[Byte], until: Array[Byte]): CommittedCursor =
        throw new UnsupportedOperationException("range")

      override def findSlots(
          other: RecordPages,
          records: Array[Int],
          count: Int,
          found: Array[Int]): Unit = {
        cache.findSlots(other, records, count, found)
        (0 until count).foreach { i =>
          val base = other.base(records(i))
          val at = other.keyOffset(records(i))
          val length = other.keyLength(records(i))
          val isThere =
            get(base, at, length, RecordTable.hashKey(base, at, length), new BytesRef)
          same("slot", found(i) >= 0 && !isThere, false)
          // A slot stays what it is: `write` goes by it.
          if (found(i) == RowCache.NotSeen && isThere) found(i) = 0
        }
      }
    }

    def bytes: Long = cache.bytes

    def isWhole: Boolean = cache.all != null

    /**
     * In turns of 15: a batch that leaves few rows, one before which all of them are read, and one
     * that puts more than a small cache has room for. What else happens is drawn.
     */
    def batch(number: Int, commits: Boolean = false): Unit = {
      val (isDeleted, isLoaded, isOutgrown) = (number % 15 == 5, number % 15 == 6, number % 15 == 7)
      if (cache.all == null && (isLoaded || random.nextInt(4) == 0)) load(isCut = !isLoaded)
      compareAll()
      val overlay = new Overlay(keyGroups, 1L << 30, () => scratchFile(), true)
      val state = new FamilyState(
        family,
        committed,
        overlay,
        () => overlay.family(
          family, PartitionKey.function("default", true, family.name, family.spec, 64)))
      var next = model
      (0 until 1 + random.nextInt(300)).foreach { _ =>
        val key = s"key${random.nextInt(400)}"
        val row = rowOf(key)
        random.nextInt(8) match {
          case 0 =>
            state.remove(row)
            next -= key
          case 1 if multiValues =>
            val value = randomValue()
            state.putValues(row, Iterator.single(rowOf(value)), append = true)
            next += key -> (next.getOrElse(key, Vector.empty) :+ value)
          case 2 | 3 =>
            val value = randomValue()
            state.put(row, rowOf(value))
            next += key -> Vector(value)
          case _ =>
            val found = state.values(row).map(_.getUTF8String(0).toString).toVector
            same(s"values in batch $number", found, next.getOrElse(key, Vector.empty))
        }
      }
      if (isDeleted) {
        next.keys.drop(40).foreach(key => state.remove(rowOf(key)))
        next = next.take(40)
      }
      if (isOutgrown) (0 until 20).foreach { i =>
        val value = "x" * 100000
        state.put(rowOf(s"key$i"), rowOf(value))
        next += s"key$i" -> Vector(value)
      }
      // Most batches commit; the cache must know nothing of the others.
      if (commits || isDeleted || isLoaded || isOutgrown || random.nextInt(4) > 0) {
        commit(overlay)
        model = next
      }
      shown.clear()
    }

    def close(): Unit = cache.close()

    /** Commits a value in a batch of its own, then reads it. */
    def putAndRead(key: String, value: String): Unit = {
      writing { (overlay, state) =>
        state.put(rowOf(key), rowOf(value))
        commit(overlay)
      }
      model += key -> Vector(value)
      writing { (_, state) =>
        same(key, state.values(rowOf(key)).map(_.getUTF8String(0).toString).toVector, model(key))
      }
    }

    private def writing(body: (Overlay, FamilyState) => Unit): Unit = {
      val overlay = new Overlay(keyGroups, 1L << 30, () => scratchFile(), true)
      body(
        overlay,
        new FamilyState(
          family,
          committed,
          overlay,
          () => overlay.family(
            family, PartitionKey.function("default", true, family.name, family.spec, 64))))
      overlay.close()
      shown.clear()
    }

    /** Some that may be are cut short, as cursors are when the last handle has gone. */
    private def load(isCut: Boolean): Unit = {
      val most =
        if (!isCut || random.nextInt(3) > 0) rocksDB.size else random.nextInt(rocksDB.size + 1)
      val entries = rocksDB.iterator.take(most)
      val unreadable =
        if (isCut && random.nextInt(2) == 0) random.nextInt(rocksDB.size + 1) else -1
      var number = 0
      val cursor = new CommittedCursor {
        override def advance(): Boolean = entries.hasNext && {
          if (number == unreadable) throw new IOException("unreadable")
          number += 1
          val (bytes, found) = entries.next()
          key.set(bytes.toArray, Platform.BYTE_ARRAY_OFFSET.toLong, bytes.length)
          value.set(found, Platform.BYTE_ARRAY_OFFSET.toLong, found.length)
          true
        }
      }
      try cache.load(noRows, cursor, rocksDB.size, () => most == rocksDB.size)
      catch { case _: IOException => unread += 1 }
      if (cache.all != null) loads += 1
    }

    /** All rows, where the cache says that it has them. */
    private def compareAll(): Unit = if (cache.all != null) {
      wholes += 1
      val rows = cache.all.rows()
      val found = mutable.HashMap.empty[Seq[Byte], Seq[Byte]]
      while (rows.advance()) found.put(bytesOf(rows.key), bytesOf(rows.value))
      same("all rows", found, rocksDB.view.mapValues(_.toSeq).toMap)
    }

    private def commit(overlay: Overlay): Unit = {
      val slots = new Array[Int](RecordBlock.Capacity)
      var change: FamilyChanges = null
      overlay.visitSorted { block =>
        if (change == null) change = new FamilyChanges(block.family)
        committed.findSlots(overlay.pages, block.addresses, block.length, slots)
        (0 until block.length).foreach { i =>
          val address = block.addresses(i)
          val op = FamilyChanges.netOp(overlay.pages, address, slots(i))
          if (op >= 0) {
            change.add(address, slots(i))
            if (op == RecordPages.Merge && random.nextBoolean()) {
              val (key, value) = (new BytesRef, new BytesRef)
              val pages = overlay.pages
              key.set(pages.base(address), pages.keyOffset(address), pages.keyLength(address))
              block.family.value(address, value)
              change.putTogether(committed, key, value)
            }
          }
        }
      }
      shown.foreach { case (ref, bytes) => same("row that was shown", bytesOf(ref), bytes) }
      if (change != null) {
        // The slots that were found are of what it had before.
        if (cache.all == null && random.nextInt(4) == 0) load(isCut = true)
        (0 until change.length).foreach(apply(overlay, change, _))
        val hadAll = cache.all != null
        cache.write(change)
        if (hadAll && cache.all == null) outgrown += 1
      }
    }

    private def apply(overlay: Overlay, change: FamilyChanges, i: Int): Unit = {
      val pages = overlay.pages
      val address = change.address(i)
      val key =
        copy(pages.base(address), pages.keyOffset(address), pages.keyLength(address)).toSeq
      val value = new BytesRef
      change.op(i) match {
        case RecordPages.Delete => rocksDB.remove(key)
        case op =>
          change.value(i, value)
          val before =
            if (op == RecordPages.Merge) rocksDB.getOrElse(key, Array.emptyByteArray)
            else Array.emptyByteArray
          rocksDB.put(key, before ++ bytesOf(value))
      }
      ()
    }

    private def rowOf(text: String): UnsafeRow =
      toRow(InternalRow(UTF8String.fromString(text))).copy()

    private def randomValue(): String =
      if (random.nextInt(60) == 0) "x" * (100000 + random.nextInt(100000))
      else "v" * random.nextInt(700)

    private def copy(base: AnyRef, at: Long, length: Int): Array[Byte] = {
      val bytes = new Array[Byte](length)
      Platform.copyMemory(base, at, bytes, Platform.BYTE_ARRAY_OFFSET.toLong, length.toLong)
      bytes
    }

    private def bytesOf(ref: BytesRef): Seq[Byte] = copy(ref.base, ref.at, ref.length).toSeq

    private def scratchFile(): File = {
      val path = Files.createTempFile("statestore-cache", ".run")
      Files.delete(path)
      path.toFile
    }

    private def same(what: String, found: Any, wanted: Any): Unit = if (found != wanted) {
      System.err.println(s"differs: $what seed=$seed budget=$budget beganEmpty=$beganEmpty " +
        s"isOutside=${outside != null}")
      System.err.println(s" found=${found.toString.take(300)}")
      System.err.println(s" wanted=${wanted.toString.take(300)}")
      System.exit(1)
    }
  }
}
