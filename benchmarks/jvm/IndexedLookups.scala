package io.statestore.bench

import java.lang.management.ManagementFactory
import java.nio.{ByteBuffer, ByteOrder}
import java.nio.channels.FileChannel
import java.nio.file.{Files, Path, Paths}
import java.nio.file.StandardOpenOption.{CREATE_NEW, READ, WRITE}
import java.util.{Arrays, SplittableRandom}
import java.util.zip.CRC32C

import scala.jdk.CollectionConverters._
import scala.util.Using

import net.jpountz.lz4.LZ4Factory
import org.apache.spark.sql.catalyst.expressions.XXH64
import org.apache.spark.unsafe.Platform
import org.rocksdb._

/** Rows of 16 B of key and 100 B of value, of which half does not compress. */
private object Rows {
  val KeyBytes = 16
  val ValueBytes = 100
  val Updates = 5
  val UpdatedRows = 25000

  def key(number: Long): Array[Byte] =
    ByteBuffer.allocate(KeyBytes).putLong(number).putLong(new SplittableRandom(number).nextLong())
      .array()

  def value(number: Long, update: Int): Array[Byte] = {
    val random = new Array[Byte](ValueBytes / 2)
    new SplittableRandom(number * 31 + update).nextBytes(random)
    Arrays.copyOf(random, ValueBytes)
  }

  /** Numbers of the rows of a file, in the order of their keys: of all rows, or of an update. */
  def numbers(view: Int, file: Int, count: Int): Iterator[Long] =
    if (file == 0) Iterator.range(0, count).map(_.toLong)
    else new SplittableRandom(view * 100L + file).longs(UpdatedRows, 0, count).distinct.sorted
      .iterator.asScala.map(_.longValue)
}

/** Where the value of a key is read from. */
private trait Lookups {
  def name: String

  /** Opens a view from what is on the disk, and returns what finds a value in it. */
  def open(view: Int): Array[Byte] => Array[Byte]
}

/** RocksDB as the shim opens it. */
private final class RocksLookups(root: Path, count: Int, compression: CompressionType)
    extends Lookups {
  val name = s"RocksDB, ${if (compression == CompressionType.NO_COMPRESSION) "not " else ""}packed"
  private val reads = new ReadOptions
  private val options = new Options().setMaxOpenFiles(-1).setTableFormatConfig(
    new BlockBasedTableConfig().setBlockCache(new LRUCache(128L << 20))
      .setCacheIndexAndFilterBlocks(true).setFilterPolicy(new BloomFilter(10)))

  private def path(view: Int): Path = root.resolve(s"rocksdb-$compression-$view")

  def write(view: Int): Unit = {
    val made = new Options().setCreateIfMissing(true).setCompressionType(compression)
      .setTableFormatConfig(
        new BlockBasedTableConfig().setBlockSize(4096).setPartitionFilters(true)
          .setIndexType(IndexType.kTwoLevelIndexSearch).setFilterPolicy(new BloomFilter(10)))
    val database = RocksDB.open(made, path(view).toString)
    for (file <- 0 to Rows.Updates) {
      val sst = root.resolve(s"$view-$file.sst").toString
      val writer = new SstFileWriter(new EnvOptions, made)
      writer.open(sst)
      for (one <- Rows.numbers(view, file, count)) writer.put(Rows.key(one), Rows.value(one, file))
      writer.finish()
      val moved = new IngestExternalFileOptions().setMoveFiles(true)
      database.ingestExternalFile(List(sst).asJava, moved)
    }
    database.close()
  }

  override def open(view: Int): Array[Byte] => Array[Byte] = {
    val database = RocksDB.openReadOnly(options, path(view).toString)
    key => database.get(reads, key)
  }
}

/**
 * A hash index outside of the heap, of 8 B a slot: 20 bits of the key's hash, 6 of the file, 38 of
 * the place in it. At most three in four slots are taken.
 */
private final class KeyIndex(count: Int) {
  private val numSlots = Integer.highestOneBit((count * 4L / 3).toInt) * 2
  private val slots = ByteBuffer.allocateDirect(numSlots * 8).order(ByteOrder.nativeOrder)
  private var found: Array[Byte] = _

  def bytes: Int = slots.capacity

  /** Returns what `read` returns of the place of a key; null when it returns that of all places. */
  def find(key: Array[Byte], read: (Int, Long) => Array[Byte]): Array[Byte] = {
    search(key, read)
    found
  }

  /** @param read returns null of a place where the key is not */
  def put(key: Array[Byte], file: Int, place: Long, read: (Int, Long) => Array[Byte]): Unit = {
    val slot = search(key, read)
    slots.putLong(slot, (hash(key) >>> 44 << 44) | ((file + 1L) << 38) | place)
  }

  def save(path: Path): Unit = Using.resource(FileChannel.open(path, CREATE_NEW, WRITE)) { to =>
    val all = slots.duplicate()
    while (all.hasRemaining) to.write(all)
  }

  def load(path: Path): Unit = Using.resource(FileChannel.open(path, READ)) { from =>
    val all = slots.duplicate()
    while (all.hasRemaining) from.read(all)
  }

  /** Returns the offset of the slot of a key, or of the one that is free for it. */
  private def search(key: Array[Byte], read: (Int, Long) => Array[Byte]): Int = {
    val hashed = hash(key)
    var at = hashed.toInt & (numSlots - 1)
    var slot = slots.getLong(at * 8)
    found = null
    while (slot != 0 && { found = readAt(slot, hashed, read); found == null }) {
      at = (at + 1) & (numSlots - 1)
      slot = slots.getLong(at * 8)
    }
    at * 8
  }

  private def readAt(slot: Long, hashed: Long, read: (Int, Long) => Array[Byte]): Array[Byte] =
    if ((slot ^ hashed) >>> 44 != 0) null
    else read(((slot >>> 38) & 63).toInt - 1, slot & ((1L << 38) - 1))

  private def hash(key: Array[Byte]): Long =
    XXH64.hashUnsafeBytes(key, Platform.BYTE_ARRAY_OFFSET, key.length, 42L)
}

/** Reads a file by calls of the system, or as memory; both find it in the page cache. */
private final class ReadFile(path: Path, isMapped: Boolean) {
  private val channel = FileChannel.open(path, READ)
  private val mapped = channel.map(FileChannel.MapMode.READ_ONLY, 0, channel.size)
  val size: Long = channel.size

  /** Reads so many bytes, or those that there are. */
  def read(place: Long, into: Array[Byte]): Unit = {
    val length = math.min(into.length.toLong, size - place).toInt
    if (isMapped) mapped.get(place.toInt, into, 0, length)
    else channel.read(ByteBuffer.wrap(into, 0, length), place)
  }
}

/** Sorted files with an index of all keys; rows are in packed blocks of 4 kB, or one by one. */
private final class IndexedLookups(root: Path, count: Int, isPacked: Boolean, isMapped: Boolean)
    extends Lookups {
  private val RowHeader = 4
  private val Header = 12
  private val Block = 4096
  private val lz4 = LZ4Factory.fastestInstance
  private val raw = new Array[Byte](2 * Block)
  private val fetched = new Array[Byte](if (isPacked) Block + Header + 64 else 192)
  private val crc = new CRC32C
  val name: String = s"index, rows ${if (isPacked) "packed" else "not packed"}, files " +
    (if (isMapped) "mapped" else "read")

  private def path(view: Int, file: Int): Path = root.resolve(s"indexed-$isPacked-$view-$file")

  private def indexPath(view: Int): Path = root.resolve(s"indexed-$isPacked-$view.index")

  def write(view: Int): Unit = for (file <- 0 to Rows.Updates) {
    val out = new java.io.DataOutputStream(
      new java.io.BufferedOutputStream(Files.newOutputStream(path(view, file)), 1 << 20))
    val rows = ByteBuffer.wrap(raw)
    rows.clear()
    def end(): Unit = if (rows.position() > 0) {
      val bytes = if (isPacked) lz4.fastCompressor.compress(raw, 0, rows.position()) else
        Arrays.copyOf(raw, rows.position())
      crc.reset()
      crc.update(bytes)
      out.writeInt(bytes.length)
      out.writeInt(rows.position())
      out.writeInt(crc.getValue.toInt)
      out.write(bytes)
      rows.clear()
    }
    Rows.numbers(view, file, count).foreach { number =>
      val (key, value) = (Rows.key(number), Rows.value(number, file))
      rows.putShort(key.length.toShort).putShort(value.length.toShort).put(key).put(value)
      if (!isPacked || rows.position() + RowHeader + key.length + value.length > Block) end()
    }
    end()
    out.close()
  }

  /** Makes the index of the files; keys of the first one are new. */
  def build(view: Int): KeyIndex = {
    val index = new KeyIndex(count)
    val files = (0 to Rows.Updates).map(file => new ReadFile(path(view, file), isMapped))
    for ((file, number) <- files.zipWithIndex) {
      var place = 0L
      while (place < file.size) {
        val length = unpack(file, place)
        val next = place + Header + packedLength
        var at = 0
        val keys = Seq.newBuilder[Array[Byte]]
        while (at < length) {
          keys += Arrays.copyOfRange(raw, at + RowHeader, at + RowHeader + shortAt(at))
          at += RowHeader + shortAt(at) + shortAt(at + 2)
        }
        for (key <- keys.result())
          if (number == 0) index.put(key, number, place, (_, _) => null)
          else index.put(key, number, place, (of, there) => valueAt(files(of), there, key))
        place = next
      }
    }
    index
  }

  def save(view: Int): Int = {
    val index = build(view)
    index.save(indexPath(view))
    index.bytes
  }

  override def open(view: Int): Array[Byte] => Array[Byte] = {
    val index = new KeyIndex(count)
    index.load(indexPath(view))
    val files = Array.tabulate(Rows.Updates + 1)(file => new ReadFile(path(view, file), isMapped))
    key => index.find(key, (file, place) => valueAt(files(file), place, key))
  }

  private def valueAt(file: ReadFile, place: Long, key: Array[Byte]): Array[Byte] = {
    val length = unpack(file, place)
    var at = 0
    while (at < length) {
      val from = at + RowHeader + shortAt(at)
      val end = from + shortAt(at + 2)
      if (Arrays.equals(raw, at + RowHeader, from, key, 0, key.length))
        return Arrays.copyOfRange(raw, from, end)
      at = end
    }
    null
  }

  /** Puts the rows of a place into `raw`; returns the length of these. */
  private def unpack(file: ReadFile, place: Long): Int = {
    file.read(place, fetched)
    val header = ByteBuffer.wrap(fetched)
    val length = header.getInt(4)
    crc.reset()
    crc.update(fetched, Header, packedLength)
    if (crc.getValue.toInt != header.getInt(8)) throw new IllegalStateException(s"place=$place")
    if (isPacked) lz4.fastDecompressor.decompress(fetched, Header, raw, 0, length)
    else System.arraycopy(fetched, Header, raw, 0, length)
    length
  }

  private def packedLength: Int = ByteBuffer.wrap(fetched).getInt(0)

  private def shortAt(at: Int): Int = ((raw(at) & 255) << 8) | (raw(at + 1) & 255)
}

/**
 * Random lookups of rows in the page cache: in RocksDB, and by an index of all keys in memory.
 * Arguments are a directory, rows of a view, and rounds; prints tables of Markdown.
 */
object IndexedLookups {
  private val Views = 4
  private val PerView = 25000
  private val threads = ManagementFactory.getThreadMXBean

  def main(args: Array[String]): Unit = {
    val root = Files.createDirectories(Paths.get(args(0)))
    val Seq(count, rounds) = args.drop(1).map(_.toInt).toSeq: @unchecked
    RocksDB.loadLibrary()
    val rocks = Seq(CompressionType.LZ4_COMPRESSION, CompressionType.NO_COMPRESSION)
      .map(new RocksLookups(root, count, _))
    val indexed = for (isPacked <- Seq(true, false); isMapped <- Seq(false, true))
      yield new IndexedLookups(root, count, isPacked, isMapped)
    for (view <- 0 until Views) {
      rocks.foreach(_.write(view))
      indexed.filter(_.name.endsWith("read")).foreach(_.write(view))
    }
    println("| | build, ms CPU a view | bytes a key |\n|---|---:|---:|")
    for (one <- indexed.filter(_.name.endsWith("read"))) {
      var bytes = 0
      val taken = (0 until Views).map(view => cpuMs { bytes = one.save(view) })
      println(f"| ${one.name} | ${median(taken)}%.0f | ${bytes.toDouble / count}%.1f |")
    }
    val all = rocks ++ indexed
    println("| | open, ms CPU a view |\n|---|---:|")
    val opened = all.map { one =>
      val views = new Array[Array[Byte] => Array[Byte]](Views)
      val taken = views.indices.map(view => cpuMs { views(view) = one.open(view) })
      println(f"| ${one.name} | ${median(taken)}%.1f |")
      views
    }
    val taken = Array.fill(all.size)(Seq.empty[Double])
    for (round <- 0 until rounds + 2; place <- all.indices) {
      val at = (place + round) % all.size // in turn, so that other work meets all of them
      val random = new SplittableRandom(round)
      val keys = Array.fill(Views, PerView)(Rows.key(random.nextLong(count)))
      val ms = cpuMs {
        for (view <- 0 until Views; key <- keys(view))
          if (opened(at)(view)(key).length != Rows.ValueBytes) throw new IllegalStateException
      }
      // Two rounds warm up.
      if (round >= 2) taken(at) :+= ms * 1000 / (Views * PerView)
    }
    check(opened, count)
    println("| | µs CPU a lookup, median | least | most |\n|---|---:|---:|---:|")
    for ((one, of) <- all.zip(taken))
      println(f"| ${one.name} | ${median(of)}%.2f | ${of.min}%.2f | ${of.max}%.2f |")
  }

  /** All must find the same values, and nothing of a key that is not there. */
  private def check(opened: Seq[Array[Array[Byte] => Array[Byte]]], count: Int): Unit = {
    val random = new SplittableRandom(1)
    for (view <- 0 until Views; _ <- 0 until 20000) {
      val key = Rows.key(random.nextLong(count + count / 10L))
      val values = opened.map(_(view)(key)).map(one => if (one == null) null else one.toSeq)
      if (values.distinct.size != 1) throw new IllegalStateException(s"values differ: view=$view")
    }
  }

  private def cpuMs(body: => Unit): Double = {
    val before = threads.getCurrentThreadCpuTime
    body
    (threads.getCurrentThreadCpuTime - before) / 1e6
  }

  private def median(of: Seq[Double]): Double = {
    val sorted = of.sorted
    (sorted((sorted.size - 1) / 2) + sorted(sorted.size / 2)) / 2
  }
}
