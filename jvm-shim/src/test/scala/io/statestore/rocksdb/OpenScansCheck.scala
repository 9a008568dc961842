package io.statestore.rocksdb

import java.io.{File, RandomAccessFile}
import java.nio.ByteBuffer
import java.util.{Arrays, TreeMap}

import scala.util.{Random, Try}

import io.statestore.view.CommittedCursor
import org.apache.spark.unsafe.Platform
import org.rocksdb.{FlushOptions, Options, RocksDB}

/**
 * Thousands of scans of one version that are left at their first row: prints how many iterators of
 * RocksDB they hold, and what the first and the last scan show when they are read on. Then hundreds
 * of scans that are read in turns, beside a sorted map; exits non-zero at the first difference. At
 * last a scan of a damaged file: prints what it raises, and what when it is asked again. Run with a
 * directory and a seed.
 */
object OpenScansCheck {
  private val NumScans = 10000
  private val NumInTurns = 300
  private val NumSteps = 100000
  private val settings = ReaderSettings.of(1L << 20)

  private type Rows = TreeMap[Array[Byte], Array[Byte]]

  def main(args: Array[String]): Unit = {
    val random = new Random(args(1).toLong)
    leaveHalfWay(new File(args(0), "halfWay"))
    readInTurns(new File(args(0), "inTurns"), random)
    readDamaged(new File(args(0), "damaged"), random)
  }

  private def leaveHalfWay(directory: File): Unit = {
    val reader = open(directory, rowsOfScans(row => Array[Byte](0, 0, row.toByte)))
    val view = new OpenView(reader, partition = 0, filter = 0)
    val scans = (0 until NumScans).map { scan =>
      val until = keyOf(scan + 1, 0).drop(RocksDBView.FamilyBytes)
      view.rowsFrom(keyOf(scan, 0), 0, until)
    }
    val first = scans.map(show)
    println(s"held=${reader.numHeld} rows=${first.distinct.mkString}")
    println(Seq(scans.head, scans.last).map(scan => show(scan) + show(scan)).mkString(" "))
    view.close()
  }

  /** The next row of a scan. */
  private def show(scan: CommittedCursor): String =
    if (scan.advance()) s"row${Platform.getByte(scan.value.base, scan.value.at)}" else "end"

  private def readInTurns(directory: File, random: Random): Unit = {
    val rows = noRows
    // Many a key is the beginning of another one, which goes on with zeros.
    (0 until 3000).foreach { number =>
      val key = Array.fill(1 + random.nextInt(8))(Seq(0, 0, 1, -1)(random.nextInt(4)).toByte)
      rows.put(key, number.toString.getBytes)
    }
    val reader = open(directory, rows)
    val from = rows.keySet.toArray(Array.empty[Array[Byte]])
    def newScan() = {
      val key = from(random.nextInt(from.length)).dropRight(random.nextInt(2))
      (reader.rowsFrom(key), rows.tailMap(key, true).entrySet.iterator)
    }
    val scans = Array.fill(NumInTurns)(newScan())
    var most, shown = 0
    (0 until NumSteps).foreach { step =>
      if (step % 10000 == 9999) {
        reader.closeIterators()
        scans.foreach(scan => same("a row after the end", scan._1.advance(), false))
        scans.indices.foreach(scans(_) = newScan())
      }
      val number = random.nextInt(NumInTurns)
      val (scan, expected) = scans(number)
      val isThere = scan.advance()
      same("whether there is a row", isThere, expected.hasNext)
      if (isThere) {
        val row = expected.next()
        same("key", scan.key.toSeq, row.getKey.toSeq)
        same("value", scan.value.toSeq, row.getValue.toSeq)
        shown += 1
      }
      if (!isThere || random.nextInt(50) == 0) {
        if (random.nextBoolean()) scan.close()
        scans(number) = newScan()
      }
      most = math.max(most, reader.numHeld)
    }
    println(s"held=$most shown=$shown")
    reader.close()
  }

  private def readDamaged(directory: File, random: Random): Unit = {
    write(directory, rowsOfScans(_ => random.nextBytes(100)))
    val file = directory.listFiles.find(_.getName.endsWith(".sst")).get
    val damaged = new RandomAccessFile(file, "rw")
    damaged.seek(damaged.length / 2)
    damaged.write(new Array[Byte](64))
    damaged.close()
    val reader = new VersionReader(directory.getPath, settings)
    val scan = reader.rowsFrom(Array.emptyByteArray)
    println(Try(while (scan.advance()) ()))
    println(Try(scan.advance()))
    reader.close()
  }

  /** Two for each scan. */
  private def rowsOfScans(value: Int => Array[Byte]): Rows = {
    val rows = noRows
    for (scan <- 0 until NumScans; row <- 1 to 2) rows.put(keyOf(scan, row), value(row))
    rows
  }

  private def keyOf(scan: Int, row: Int): Array[Byte] =
    ByteBuffer.allocate(7).putShort(0).putInt(scan).put(row.toByte).array

  private def noRows: Rows = new TreeMap[Array[Byte], Array[Byte]](Arrays.compareUnsigned(_, _))

  private def open(directory: File, rows: Rows): VersionReader = {
    write(directory, rows)
    new VersionReader(directory.getPath, settings)
  }

  private def write(directory: File, rows: Rows): Unit = {
    val written = RocksDB.open(new Options().setCreateIfMissing(true), directory.getPath)
    rows.forEach((key, value) => written.put(key, value))
    written.flush(new FlushOptions)
    written.close()
  }

  private def same(what: String, found: Any, wanted: Any): Unit = if (found != wanted) {
    System.err.println(s"differs: $what found=$found wanted=$wanted")
    System.exit(1)
  }
}
