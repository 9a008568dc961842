package org.apache.spark.sql.execution.benchmark

import java.util.UUID

import scala.util.Random

import org.apache.hadoop.conf.Configuration
import org.apache.spark.benchmark.Benchmark
import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.execution.streaming.runtime.StreamExecution
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.internal.SQLConf
import org.apache.spark.sql.types.StructType
import org.apache.spark.util.Utils

/**
 * `StateStoreBasicOperationsBenchmark` with more stores: Spark's rows, Spark's loops over a store,
 * Spark's clock and table, of which it calls the private methods. Arguments: iterations of each
 * case, where Spark takes 1000; then class names of providers.
 */
object StoresBenchmark {
  private type Rows = Seq[(UnsafeRow, Any)]
  private val rates = Seq(100, 50, 10, 0)

  def main(args: Array[String]): Unit = {
    val iterations = args.head.toInt
    val stores = new Stores(args.tail.toSeq)
    val rows = 10000
    val stamps = (1 to rows).map(_ * 1000L).toList

    def run(name: String, data: Rows, lists: Boolean = false)(
        operation: StateStore => Unit): Unit = {
      val benchmark = new Benchmark(name, data.size, minNumIters = iterations)
      val opened = stores.open(lists)
      for ((store, provider) <- opened) {
        val version = spark[Long](
          if (lists) "loadInitialDataWithMultipleValues" else "loadInitialData", provider, data)
        benchmark.addTimerCase(store) { timer =>
          val store = provider.getStore(version)
          timer.startTiming()
          operation(store)
          timer.stopTiming()
          store.abort()
        }
      }
      benchmark.run()
      opened.foreach(_._2.close())
    }

    /** Of `data` the given share, the rest new; in random order. */
    def mixed(data: Rows, rate: Int)(make: Int => Rows): Rows = {
      val old = Random.shuffle(data).take(data.size * rate / 100)
      Random.shuffle(old ++ make(data.size - old.size))
    }

    val data = make(stamps)
    for (rate <- rates) {
      val put = mixed(data, rate)(n => make(stamps.take(n)))
      run(s"put $rows rows, $rate % of them there", data)(spark[Unit]("updateRows", _, put))
    }
    val lists = makeLists(stamps.take(1000))
    for (rate <- rates) {
      val merged = mixed(lists, rate)(n => makeLists(stamps.take(n)))
      run(s"put and merge ${lists.size} lists of 10, $rate % of them there", lists, lists = true)(
        spark[Unit]("mergeRows", _, merged))
    }
    for (rate <- rates) {
      val keys = mixed(data, rate)(n => make(stamps.take(n))).map(_._1)
      run(s"remove $rows rows, $rate % of them there", data)(spark[Unit]("deleteRows", _, keys))
    }
    for (rate <- rates) {
      val evicted = Long.box(rows * rate / 100L)
      run(s"evict $evicted of $rows rows by a full scan", data)(
        spark[Unit]("evictAsFullScanAndRemove", _, evicted, evicted))
    }
    System.exit(0)
  }

  // Spark's methods make no rows only with an error.
  private def make(stamps: List[Long]): Rows =
    if (stamps.isEmpty) Nil
    else spark("constructRandomizedTestData", Int.box(stamps.size), stamps, Int.box(0))

  private def makeLists(stamps: List[Long]): Rows =
    if (stamps.isEmpty) Nil
    else
      spark(
        "constructRandomizedTestDataWithMultipleValues",
        Int.box(stamps.size),
        stamps,
        Int.box(10),
        Int.box(0))

  /** What a private method of Spark's benchmark returns. */
  private[benchmark] def spark[T](name: String, arguments: AnyRef*): T = {
    val found = methods(name).invoke(StateStoreBasicOperationsBenchmark, arguments: _*)
    found.asInstanceOf[T]
  }

  private lazy val methods = {
    val declared = StateStoreBasicOperationsBenchmark.getClass.getDeclaredMethods
    declared.foreach(_.setAccessible(true))
    declared.map(method => method.getName -> method).toMap
  }
}

/** Spark's stores as Spark's benchmark makes them, and others. */
private class Stores(classes: Seq[String]) {
  def open(lists: Boolean): Seq[(String, StateStoreProvider)] = {
    def rocksdb(counts: Boolean): (String, StateStoreProvider) = {
      val flags = Seq(counts, lists, lists).map(Boolean.box)
      val provider =
        StoresBenchmark.spark[StateStoreProvider]("newRocksDBStateProvider", flags: _*)
      s"Spark RocksDB, ${if (counts) "counting rows" else "not counting"}" -> provider
    }
    val inMemory =
      if (lists) Nil
      else
        Seq("Spark HDFS-backed" ->
          StoresBenchmark.spark[StateStoreProvider]("newHDFSBackedStateStoreProvider"))
    val others = classes.map(name => name.split('.').last -> make(name, lists))
    (inMemory :+ rocksdb(true) :+ rocksdb(false)) ++ others
  }

  private def make(name: String, lists: Boolean): StateStoreProvider = {
    val provider = StateStoreProvider.create(name)
    val conf = new SQLConf
    conf.setConf(SQLConf.STATE_STORE_PROVIDER_CLASS, name)
    sys.props.get("spark.pyspark.python").foreach(conf.setConfString("spark.pyspark.python", _))
    val hadoop = new Configuration
    hadoop.set(StreamExecution.RUN_ID_KEY, UUID.randomUUID().toString)
    val key = StoresBenchmark.spark[StructType]("keySchema")
    provider.init(
      StateStoreId(Utils.createTempDir().toString, Random.nextInt(1000), 0),
      key,
      StoresBenchmark.spark[StructType]("valueSchema"),
      NoPrefixKeyStateEncoderSpec(key),
      useColumnFamilies = lists,
      new StateStoreConf(conf),
      hadoop,
      useMultipleValuesPerKey = lists)
    provider
  }
}
