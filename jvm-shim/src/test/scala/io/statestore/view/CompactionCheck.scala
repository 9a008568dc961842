package io.statestore.view

import scala.collection.mutable
import scala.util.Random

import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions.UnsafeProjection
import org.apache.spark.sql.execution.streaming.state.{NoPrefixKeyStateEncoderSpec, StateStore}
import org.apache.spark.sql.types.{BinaryType, LongType, StructType}
import org.apache.spark.unsafe.Platform

/**
 * Rows of one size, of every order of sizes, and of sizes up to one, of which some are removed and
 * others replaced: a compaction keeps those that are left, and a second one moves none. Run with a
 * seed; exits non-zero at the first difference.
 */
object CompactionCheck {
  private val Bytes = 24 << 20
  private val MostRows = 20000
  private val mostBytes = 200000
  private val keySchema = new StructType().add("k", LongType)
  private val valueSchema = new StructType().add("v", BinaryType)
  private val toKey = UnsafeProjection.create(keySchema)
  private val family = ColumnFamily(
    ColumnFamily.DefaultId,
    StateStore.DEFAULT_COL_FAMILY_NAME,
    NoPrefixKeyStateEncoderSpec(keySchema),
    valueSchema,
    multiValues = false,
    internal = false)
  private var compacted = 0

  def main(args: Array[String]): Unit = {
    val random = new Random(args(0).toLong)
    val sizes = Seq(1, 10, 100, 1000, 10000, 50000, 64000, 66000, 86000, 90000, 98000, 131000) ++
      Seq(132000, mostBytes) ++ Seq.fill(12)(1 + random.nextInt(mostBytes))
    sizes.foreach { size =>
      new Rows(random, size, _ => size).run()
      new Rows(random, size, of => 1 + of.nextInt(size)).run()
    }
    println(s"ok compacted=$compacted of=${2 * sizes.size}")
  }

  private final class Rows(random: Random, size: Int, sizeOf: Random => Int) {
    private val rows = new PagedFamily(family)
    private val model = mutable.HashMap.empty[Int, Array[Byte]]
    private val numRows = math.min(MostRows, Bytes / size)

    def run(): Unit = {
      (0 until numRows).foreach(put)
      (0 until numRows).foreach { number =>
        random.nextInt(4) match {
          case 0 => put(number)
          case 1 | 2 => remove(number)
          case _ => ()
        }
      }
      val before = addresses
      rows.compactIfWasteful()
      if (addresses != before) compacted += 1
      compare("after a compaction")
      val after = addresses
      rows.compactIfWasteful()
      require(addresses == after, s"rows of up to $size bytes were moved again, in vain")
      compare("after a second one")
    }

    private def addresses: Seq[Int] = rows.table.liveAddresses.sorted.toSeq

    private def put(number: Int): Unit = {
      val value = new Array[Byte](sizeOf(random))
      random.nextBytes(value)
      withKey(number) { (base, at, length) =>
        rows.load(
          base, at, length, value, Platform.BYTE_ARRAY_OFFSET.toLong, value.length, append = false)
      }
      model(number) = value
    }

    private def remove(number: Int): Unit = {
      withKey(number)(rows.unload(_, _, _))
      model.remove(number)
      ()
    }

    private def compare(when: String): Unit = {
      require(rows.table.size == model.size, s"${rows.table.size} rows $when, not ${model.size}")
      val found = new BytesRef
      model.foreach { case (number, value) =>
        withKey(number) { (base, at, length) =>
          val hash = RecordTable.hashKey(base, at, length)
          require(rows.get(base, at, length, hash, found), s"row $number is gone $when")
          val bytes = new Array[Byte](found.length)
          Platform.copyMemory(
            found.base, found.at, bytes, Platform.BYTE_ARRAY_OFFSET.toLong, found.length.toLong)
          require(java.util.Arrays.equals(bytes, value), s"row $number differs $when")
        }
      }
    }

    private def withKey(number: Int)(use: (AnyRef, Long, Int) => Unit): Unit = {
      val key = toKey(InternalRow(number.toLong))
      use(key.getBaseObject, key.getBaseOffset, key.getSizeInBytes)
    }
  }
}
