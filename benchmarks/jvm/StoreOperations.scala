package io.statestore.bench

import java.lang.management.ManagementFactory
import java.nio.ByteBuffer
import java.nio.channels.FileChannel
import java.nio.file.{Files, Path, Paths, StandardCopyOption, StandardOpenOption}
import java.util.{SplittableRandom, UUID}

import scala.jdk.CollectionConverters._
import scala.reflect.ClassTag
import scala.util.Using

import com.fasterxml.jackson.databind.ObjectMapper
import org.apache.hadoop.conf.Configuration
import org.apache.spark.{SparkContext, TaskContext}
import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions.{BoundReference, UnsafeProjection, UnsafeRow}
import org.apache.spark.sql.catalyst.plans.physical.HashPartitioning
import org.apache.spark.sql.classic.SparkSession
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.types._
import org.apache.spark.unsafe.types.UTF8String

/** How the rows of a workload look; `key` and `value` give the columns of row `i`. */
private sealed trait Shape {
  def keySchema: StructType
  def valueSchema: StructType
  def key(i: Int): Seq[Any]
  def value(i: Int, update: Int): Seq[Any]
}

/** Rows of W1: 18 characters -> (count, sum). */
private case object Aggregation extends Shape {
  val keySchema: StructType = new StructType().add("k", StringType)
  val valueSchema: StructType = new StructType().add("count", LongType).add("sum", LongType)
  def key(i: Int): Seq[Any] = Seq(UTF8String.fromString(f"key-$i%014d"))
  def value(i: Int, update: Int): Seq[Any] = Seq(update + 1L, i.toLong)
}

/** Rows of Spark's StateStoreBasicOperationsBenchmark: (int, timestamp) -> int. */
private case object Windowed extends Shape {
  val keySchema: StructType = new StructType().add("key1", IntegerType).add("key2", TimestampType)
  val valueSchema: StructType = new StructType().add("value", IntegerType)
  def key(i: Int): Seq[Any] = Seq[Any](i, i.toLong)
  def value(i: Int, update: Int): Seq[Any] = Seq(i + update)
}

/** 18 characters -> `size` bytes that do not compress. */
private final case class Payload(size: Int) extends Shape {
  val keySchema: StructType = Aggregation.keySchema
  val valueSchema: StructType = new StructType().add("payload", BinaryType)
  def key(i: Int): Seq[Any] = Aggregation.key(i)
  def value(i: Int, update: Int): Seq[Any] = {
    val bytes = new Array[Byte](size)
    new SplittableRandom(i * 1000003L + update).nextBytes(bytes)
    Seq(bytes)
  }
}

/** Makes the UnsafeRows of a shape for one partition; not thread-safe. */
private final class RowMaker(shape: Shape, numPartitions: Int) {
  private val projectKey = UnsafeProjection.create(shape.keySchema)
  private val projectValue = UnsafeProjection.create(shape.valueSchema)
  private val projectPartition = {
    val columns = shape.keySchema.fields.toSeq.zipWithIndex.map { case (field, ordinal) =>
      BoundReference(ordinal, field.dataType, field.nullable)
    }
    UnsafeProjection.create(Seq(HashPartitioning(columns, numPartitions).partitionIdExpression))
  }

  /** The rows handed out are reused by the next call; copy them to keep them. */
  def key(i: Int): UnsafeRow = projectKey(InternalRow.fromSeq(shape.key(i)))
  def value(i: Int, update: Int): UnsafeRow =
    projectValue(InternalRow.fromSeq(shape.value(i, update)))
  def partition(key: UnsafeRow): Int = projectPartition(key).getInt(0)
}

/** The providers under test, one a state partition, and the version that all of them are at. */
private final class OpenStores(
    val context: SparkContext,
    val shape: Shape,
    val root: String,
    val conf: StateStoreConf,
    val hadoopConf: Configuration,
    val numPartitions: Int) {
  val providers = new Array[StateStoreProvider](numPartitions)
  @volatile var version = 0L
}

/**
 * Calls a state store provider as an operator would, without a query.
 *
 * One set of stores is open at a time. Every store handle is used within a Spark task of its own,
 * because a provider may rely on the task's context and its completion listeners. Times are
 * nanoseconds around the store's calls only: rows are made before. Results are JSON. Local mode
 * only: the tasks find the stores in this object.
 */
object StoreOperations {
  @volatile private var stores: OpenStores = _

  def open(spark: SparkSession, root: String, shapeName: String, numPartitions: Int): Unit = {
    val shape = shapeName.split(':') match {
      case Array("aggregation") => Aggregation
      case Array("windowed") => Windowed
      case Array("payload", size) => Payload(size.toInt)
      case _ => throw new IllegalArgumentException(s"no such shape: shape=$shapeName")
    }
    val hadoopConf = spark.sessionState.newHadoopConf()
    // What a query puts in here for its providers.
    hadoopConf.set("sql.streaming.runId", UUID.randomUUID().toString)
    hadoopConf.setInt("spark.sql.streaming.internal.stateStore.partitions", numPartitions)
    stores = new OpenStores(spark.sparkContext, shape, root,
      new StateStoreConf(spark.sessionState.conf), hadoopConf, numPartitions)
    inTasks { partition =>
      val s = stores
      val id = StateStoreId(s.root, 0L, partition)
      Files.createDirectories(Paths.get(id.storeCheckpointLocation().toString))
      s.providers(partition) = StateStoreProvider.createAndInit(
        StateStoreProviderId(id, UUID.fromString(s.hadoopConf.get("sql.streaming.runId"))),
        s.shape.keySchema, s.shape.valueSchema, NoPrefixKeyStateEncoderSpec(s.shape.keySchema),
        useColumnFamilies = false, s.conf, s.hadoopConf, useMultipleValuesPerKey = false, None)
    }
  }

  def close(): Unit = {
    stores.providers.foreach(_.close())
    stores = null
  }

  /** Puts `numRows` rows of update `update`, every `stride`-th key number, and commits them. */
  def write(numRows: Int, stride: Int, update: Int, forceSnapshot: Boolean): String = {
    val parts = inTasks { partition =>
      val store = stores.providers(partition)
        .getStore(stores.version, None, forceSnapshot, loadEmpty = false)
      val rows = new RowMaker(stores.shape, stores.numPartitions)
      var payload = 0L
      var written = 0L
      var i = update % stride
      while (i < numRows) {
        val key = rows.key(i)
        if (rows.partition(key) == partition) {
          val value = rows.value(i, update)
          payload += key.getSizeInBytes + value.getSizeInBytes
          written += 1
          store.put(key, value)
        }
        i += stride
      }
      val commitNanos = timed(store.commit())
      val metrics = store.metrics
      val custom = metrics.customMetrics.map { case (metric, value) => metric.name -> value }
      (written, payload, commitNanos, metrics.numKeys, metrics.memoryUsedBytes, custom)
    }
    stores.version += 1
    json(
      "rows" -> parts.map(_._1).sum,
      "payload_bytes" -> parts.map(_._2).sum,
      "commit_ns" -> parts.map(_._3),
      "num_keys" -> parts.map(_._4).sum,
      "memory_used_bytes" -> parts.map(_._5).sum,
      "custom_metrics" -> parts.flatMap(_._6).groupMapReduce(_._1)(_._2)(_ + _).asJava)
  }

  /**
   * Times getStore, get, put, remove, evict by scan and commit, each `iterations` times, on a store
   * of one partition that was loaded with `numRows` rows. `overlap` percent of the keys touched
   * exist. Only commits change the version.
   */
  def basicOperations(numRows: Int, overlap: Int, iterations: Int): String = {
    val runs = (0 until iterations).map { update =>
      Seq(
        "getStore" -> onStore(timed(stores.providers(0).getStore(stores.version).abort())),
        "get" -> onStore {
          val touched = makeTouched(numRows, overlap, update)
          abandon { store => touched.foreach { case (key, _) => store.get(key) } }
        },
        "put" -> onStore {
          val touched = makeTouched(numRows, overlap, update)
          abandon { store => touched.foreach { case (key, value) => store.put(key, value) } }
        },
        "remove" -> onStore {
          val touched = makeTouched(numRows, overlap, update)
          abandon { store => touched.foreach { case (key, _) => store.remove(key) } }
        },
        "evict" -> onStore {
          val bound = numRows.toLong * overlap / 100
          abandon { store =>
            val pairs = store.iterator()
            pairs.foreach(pair => if (pair.key.getLong(1) < bound) store.remove(pair.key))
            pairs.close()
          }
        })
    }
    val commits = (0 until iterations).map { update =>
      val nanos = onStore {
        val touched = makeTouched(numRows, overlap, iterations + update)
        val store = stores.providers(0).getStore(stores.version)
        touched.foreach { case (key, value) => store.put(key, value) }
        timed(store.commit())
      }
      stores.version += 1
      "commit" -> nanos
    }
    json((runs.flatten ++ commits).groupMap(_._1)(_._2).map { case (operation, nanos) =>
      operation -> nanos.toArray
    }.toSeq: _*)
  }

  /**
   * Commits all `numRows` rows anew `iterations` times; after each commit writes as many bytes as
   * it published to a plain file beside it: write, fsync, rename, fsync of the directory.
   */
  def commitsAgainstRawWrites(numRows: Int, iterations: Int): String = {
    val runs = (0 until iterations).map { update =>
      val run = onStore {
        val rows = new RowMaker(stores.shape, 1)
        val store = stores.providers(0).getStore(stores.version)
        (0 until numRows).foreach(i => store.put(rows.key(i), rows.value(i, update + 1)))
        val root = Paths.get(stores.root)
        val before = filesBelow(root)
        val commitNanos = timed(store.commit())
        val published = filesBelow(root).removedAll(before.keys).values.sum
        val metrics = store.metrics.customMetrics.map { case (metric, value) =>
          metric.name -> value
        }
        (commitNanos, rawWrite(root.resolve("raw"), published), published, metrics.asJava)
      }
      stores.version += 1
      run
    }
    json("commit_ns" -> runs.map(_._1).toArray, "raw_ns" -> runs.map(_._2).toArray,
      "bytes" -> runs.map(_._3).toArray, "custom_metrics" -> runs.map(_._4).toArray)
  }

  /**
   * Reads and writes random ones of `numKeys` keys `updates` times in one version of a store of one
   * partition, as a batch in real-time mode does, commits it, and opens the next version at once.
   */
  def longBatch(numKeys: Int, updates: Long, seed: Int): String = {
    val (callNanos, longest, cpuNanos, commitNanos, metrics) = onStore {
      val threads = ManagementFactory.getThreadMXBean
      val rows = new RowMaker(stores.shape, 1)
      val keys = Array.tabulate(numKeys)(i => rows.key(i).copy())
      val values = Array.tabulate(LongBatchValues)(i => rows.value(i, seed).copy())
      val random = new SplittableRandom(seed)
      val store = stores.providers(0).getStore(stores.version)
      var longest = 0L
      val cpu = threads.getCurrentThreadCpuTime
      val begin = System.nanoTime()
      var last = begin
      var i = 0L
      while (i < updates) {
        val key = keys(random.nextInt(numKeys))
        store.get(key)
        store.put(key, values((i % LongBatchValues).toInt))
        val now = System.nanoTime()
        longest = math.max(longest, now - last)
        last = now
        i += 1
      }
      val used = threads.getCurrentThreadCpuTime - cpu
      val commitNanos = timed(store.commit())
      val custom = store.metrics.customMetrics.map { case (metric, value) => metric.name -> value }
      (last - begin, longest, used, commitNanos, custom.asJava)
    }
    stores.version += 1
    val openNanos = onStore(timed(stores.providers(0).getStore(stores.version).abort()))
    json("call_ns" -> callNanos, "longest_ns" -> longest, "cpu_ns" -> cpuNanos,
      "commit_ns" -> commitNanos, "open_ns" -> openNanos, "custom_metrics" -> metrics)
  }

  private val LongBatchValues = 1000

  /** Live bytes of the heap after full collections. */
  def usedHeapBytes(): Long = {
    val memory = ManagementFactory.getMemoryMXBean
    (1 to 5).map { _ =>
      System.gc()
      Thread.sleep(200)
      memory.getHeapMemoryUsage.getUsed
    }.min
  }

  private def inTasks[T: ClassTag](body: Int => T): Array[T] = {
    val n = stores.numPartitions
    stores.context.runJob(
      stores.context.parallelize(0 until n, n),
      (task: TaskContext, _: Iterator[Int]) => body(task.partitionId()))
  }

  private def onStore[T: ClassTag](body: => T): T = inTasks(_ => body).head

  private def abandon(body: StateStore => Unit): Long = {
    val store = stores.providers(0).getStore(stores.version)
    val nanos = timed(body(store))
    store.abort()
    nanos
  }

  private def makeTouched(
      numRows: Int, overlap: Int, update: Int): IndexedSeq[(UnsafeRow, UnsafeRow)] = {
    val rows = new RowMaker(stores.shape, 1)
    val existing = (numRows.toLong * overlap / 100).toInt
    val random = new scala.util.Random(update)
    val numbers = random.shuffle((0 until numRows).toVector).take(existing) ++
      (existing until numRows).map(_ + numRows * (update + 1))
    random.shuffle(numbers).map(i => (rows.key(i).copy(), rows.value(i, update).copy()))
  }

  private def rawWrite(directory: Path, size: Long): Long = {
    Files.createDirectories(directory)
    val chunk = new Array[Byte](1 << 20)
    new SplittableRandom(size).nextBytes(chunk)
    val buffer = ByteBuffer.allocateDirect(size.toInt)
    while (buffer.hasRemaining) buffer.put(chunk, 0, math.min(chunk.length, buffer.remaining))
    buffer.flip()
    // Kept, as a store keeps its files: one in place of another just deleted would find page-cache
    // memory that is warm, and so be written several times as fast.
    val number = directory.toFile.list().length
    val staged = directory.resolve(s"$number.staged")
    val published = directory.resolve(s"$number.published")
    timed {
      Using.resource(FileChannel.open(
          staged, StandardOpenOption.CREATE_NEW, StandardOpenOption.WRITE)) { file =>
        while (buffer.hasRemaining) file.write(buffer)
        file.force(true)
      }
      Files.move(staged, published, StandardCopyOption.ATOMIC_MOVE)
      Using.resource(FileChannel.open(directory, StandardOpenOption.READ))(_.force(true))
    }
  }

  /** Size of every file of the stores that a commit publishes: no checksum, no snapshot of ours. */
  private def filesBelow(root: Path): Map[Path, Long] =
    Using.resource(Files.walk(root.resolve("0"))) { paths =>
      paths.iterator.asScala.filter { path =>
        val name = path.getFileName.toString
        !name.startsWith(".") && !name.contains("snapshot") && Files.isRegularFile(path)
      }.map(path => path -> Files.size(path)).toMap
    }

  private def timed(body: => Any): Long = {
    val start = System.nanoTime()
    body
    System.nanoTime() - start
  }

  private def json(fields: (String, Any)*): String =
    new ObjectMapper().writeValueAsString(fields.toMap.asJava)
}
