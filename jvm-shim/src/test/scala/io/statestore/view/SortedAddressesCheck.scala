package io.statestore.view

import java.nio.ByteBuffer
import java.util.{Arrays, TreeMap}

import scala.collection.mutable
import scala.jdk.CollectionConverters._
import scala.util.Random

import org.apache.spark.unsafe.Platform

/**
 * Random inserts, removals, replacements and ranges on an ordered index against a `TreeMap`. Keys
 * of a life begin alike, and go on alike behind some bytes; they are of few different bytes or of
 * any, and of several lengths. A rare one is otherwise, and bounds are anything. Some ranges are of
 * a frozen index and read later. Run with a seed and a number of lives; exits non-zero at the first
 * difference.
 */
object SortedAddressesCheck {
  private val ArrayStart = Platform.BYTE_ARRAY_OFFSET.toLong
  private var ranges = 0L
  private var shown = 0L
  private var outside = 0L
  private var emptied = 0L
  private var most = 0
  private var late = 0L

  def main(args: Array[String]): Unit = {
    val seed = args(0).toLong
    (0 until args(1).toInt).foreach(life => new Life(new Random(seed * 1000003L + life)).run())
    ascend()
    comeAndGo()
    println(s"ok seed=$seed ranges=$ranges shown=$shown outside=$outside emptied=$emptied " +
      s"most=$most late=$late")
  }

  /** Keys that ascend fill the blocks. */
  private def ascend(): Unit = {
    val pages = new RecordPages
    val index = new SortedAddresses(pages)
    val keys = 100000
    (0 until keys).foreach { number =>
      val key = ByteBuffer.allocate(8).putLong(number.toLong).array
      index.insert(pages.append(RecordPages.Put, key, ArrayStart, key.length, null, 0L, 0))
    }
    require(index.indexBytes < 13L * keys, s"index of $keys keys in order: ${index.indexBytes} B")
  }

  /** Few of the keys stay, as timers do of keys that are not seen again. */
  private def comeAndGo(): Unit = {
    val pages = new RecordPages
    val index = new SortedAddresses(pages)
    val keys = 100000
    def append(number: Int): Int = {
      val key = ByteBuffer.allocate(8).putLong(number.toLong).array
      pages.append(RecordPages.Put, key, ArrayStart, key.length, null, 0L, 0)
    }
    (0 until keys).foreach { number =>
      index.insert(append(number))
      val old = number - 1000
      if (old >= 0 && old % 100 > 0) index.remove(append(old))
    }
    val left = keys / 100 + 1000
    require(index.indexBytes < 60L * left, s"index of $left keys: ${index.indexBytes} B")
  }

  /** A range of a frozen index with what it has to show. */
  private final class Frozen(
      val cursor: AddressCursor,
      val expected: Vector[Int],
      val isClosed: Boolean)

  private final class Life(random: Random) {
    private val pages = new RecordPages
    private val index = new SortedAddresses(pages)
    private val model = new TreeMap[Array[Byte], Integer](Arrays.compareUnsigned(_, _))
    private val prefix = bytes(Seq(0, 0, 3, 8, 9, 17)(random.nextInt(6)), 256)
    private val middle = bytes(Seq(0, 0, 1, 2, 7, 8, 16, 80)(random.nextInt(8)), 256)
    private val middleAt = random.nextInt(10)
    private val lengths = Seq.fill(3)(random.nextInt(24))
    private val alphabet = Seq(2, 3, 256)(random.nextInt(3))
    private val outliers = Seq(0, 1, 50)(random.nextInt(3))
    private val keep = random.nextInt(10)
    private val frozen = mutable.ArrayBuffer.empty[Frozen]

    def run(): Unit = {
      val steps = 1 << random.nextInt(14)
      (0 until steps).foreach { _ =>
        if (random.nextInt(10) < keep) insert() else change()
        if (random.nextInt(4) == 0) compareRange()
        if (random.nextInt(8) == 0) freeze()
        if (frozen.size > random.nextInt(6)) compareFrozen()
        most = math.max(most, model.size)
        require(index.indexBytes >= 12L * model.size, "entries that are not counted")
      }
      while (!model.isEmpty) remove(model.firstKey)
      require(index.indexBytes == 0L, s"an empty index of ${index.indexBytes} B")
      emptied += 1
      while (frozen.nonEmpty) compareFrozen()
      (0 until 20).foreach { _ => insert(); compareRange() }
    }

    private def bytes(length: Int, kinds: Int): Array[Byte] = {
      val step = 255 / (kinds - 1)
      Array.fill(length)((random.nextInt(kinds) * step).toByte)
    }

    private def newKey(): Array[Byte] = {
      val own = bytes(lengths(random.nextInt(lengths.size)), alphabet)
      val (head, tail) = own.splitAt(middleAt)
      if (random.nextInt(1000) < outliers) bytes(random.nextInt(20), 256)
      else if (random.nextInt(1000) < outliers) prefix ++ head ++ bytes(middle.length, 2) ++ tail
      else prefix ++ head ++ middle ++ tail
    }

    private def insert(): Unit = {
      val key = newKey()
      if (!model.containsKey(key)) {
        val address = append(key)
        index.insert(address)
        model.put(key, address)
      }
    }

    private def change(): Unit = if (!model.isEmpty) {
      val near = model.ceilingKey(newKey())
      val key = if (near == null) model.lastKey else near
      if (random.nextInt(3) == 0) {
        val address = append(key)
        index.replace(address)
        model.put(key, address)
      } else {
        remove(key)
      }
    }

    private def remove(key: Array[Byte]): Unit = {
      index.remove(append(key))
      model.remove(key)
    }

    private def append(key: Array[Byte]): Int =
      pages.append(RecordPages.Put, key, ArrayStart, key.length, null, 0L, 0)

    /** A key, the beginning of one or more than one, or null. */
    private def bound(): Array[Byte] = random.nextInt(5) match {
      case 0 => null
      case 1 => bytes(random.nextInt(20), 256)
      case 2 =>
        val key = newKey()
        Arrays.copyOf(key, random.nextInt(key.length + 1))
      case 3 => newKey() ++ bytes(1, 256)
      case 4 => newKey()
    }

    private def compareRange(): Unit = {
      val from = bound()
      val until = if (from != null && random.nextBoolean()) KeyCodec.afterPrefix(from) else bound()
      val cursor = index.range(from, until)
      val found = Iterator.continually(cursor.next()).takeWhile(_ != 0).toVector
      val expected = rowsBetween(from, until)
      if (found != expected) {
        System.err.println(s"range from=${hex(from)} until=${hex(until)}: " +
          s"${found.size} addresses, expected ${expected.size}, of ${model.size} keys")
        System.exit(1)
      }
      ranges += 1
      shown += found.size
      if (found.isEmpty && !model.isEmpty) outside += 1
    }

    private def freeze(): Unit = {
      val (from, until) = (bound(), bound())
      val cursor = index.frozen(pages.frozen).range(from, until)
      frozen += new Frozen(cursor, rowsBetween(from, until), random.nextInt(10) > 0)
    }

    /** A reader in ten is forgotten: none says that it is done. */
    private def compareFrozen(): Unit = {
      val read = frozen.remove(random.nextInt(frozen.size))
      val found = Iterator.continually(read.cursor.next()).takeWhile(_ != 0).toVector
      require(found == read.expected, s"frozen: ${found.size} not ${read.expected.size} addresses")
      if (read.isClosed) index.thaw()
      late += found.size
    }

    private def rowsBetween(from: Array[Byte], until: Array[Byte]): Vector[Int] = {
      val above = if (from == null) model else model.tailMap(from, true)
      val isBelow = (key: Array[Byte]) => until == null || Arrays.compareUnsigned(key, until) < 0
      above.asScala.iterator
        .takeWhile { case (key, _) => isBelow(key) }
        .map(_._2.intValue)
        .toVector
    }

    private def hex(key: Array[Byte]): String =
      if (key == null) "null" else key.map(b => f"${b & 0xff}%02x").mkString
  }
}
