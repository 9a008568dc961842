package io.statestore.bench

import java.lang.management.{ManagementFactory, ThreadMXBean}
import java.util
import java.util.Arrays
import java.util.concurrent.{ConcurrentHashMap, ConcurrentSkipListMap}
import java.util.concurrent.atomic.AtomicLong

import scala.jdk.CollectionConverters._

import org.apache.spark.sql.catalyst.expressions._
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.types.StructType

/**
 * A store that is a map on the heap: one version, nothing written, nothing undone by an abort. A
 * query on it has the rows that it should have, so Spark does all of its own work.
 *
 * `mapCallNanos` says what CPU its calls took: their time, less the share of it in which other
 * threads had the processor. What a query takes without that is Spark's own part, and no store can
 * bring it below that.
 */
final class MapStateStoreProvider extends UnwrittenStateStoreProvider {
  private var families: MapFamilies = _

  override protected def begin(spec: KeyStateEncoderSpec): Unit = {
    // Rows outlive the providers of a run, so a query can be started anew.
    families = MapFamilies.all.computeIfAbsent(stateStoreId, _ => new MapFamilies)
    families.create(StateStore.DEFAULT_COL_FAMILY_NAME, spec)
  }

  private[bench] override def open(version: Long): UnwrittenStore =
    new MapStore(stateStoreId, version, families)

  override def supportedCustomMetrics: Seq[StateStoreCustomMetric] = Seq(MapFamilies.CallNanos)
}

private object MapFamilies {
  val CallNanos: StateStoreCustomSumMetric =
    StateStoreCustomSumMetric("mapCallNanos", "CPU in calls of the map")

  val all = new ConcurrentHashMap[StateStoreId, MapFamilies]
}

/** The rows of a store by column family: values, or lists of them, by key. */
private final class MapFamilies {
  val byName = new ConcurrentHashMap[String, Family]

  def create(name: String, spec: KeyStateEncoderSpec): Unit =
    byName.computeIfAbsent(name, _ => Family(spec))
}

private trait Family {
  type Entry = util.Map.Entry[UnsafeRow, Any]

  def get(key: UnsafeRow): Any
  def put(key: UnsafeRow, value: Any): Unit
  def remove(key: UnsafeRow): Unit
  def entries: Iterator[Entry]
  def scan(prefix: UnsafeRow): Iterator[Entry] = throw new UnsupportedOperationException("scan")
  def range(start: Option[UnsafeRow], end: Option[UnsafeRow]): Iterator[Entry] =
    throw new UnsupportedOperationException("range")
  def size: Long
}

private object Family {
  def apply(spec: KeyStateEncoderSpec): Family = spec match {
    case PrefixKeyScanStateEncoderSpec(schema, numColsPrefixKey) =>
      new PrefixFamily(schema, numColsPrefixKey)
    case RangeKeyScanStateEncoderSpec(schema, ordinals) =>
      new RangeFamily(inOrder(schema, ordinals))
    case TimestampAsPrefixKeyStateEncoderSpec(schema) =>
      new RangeFamily(inOrder(schema, Seq(schema.length - 1)))
    case TimestampAsPostfixKeyStateEncoderSpec(schema) => new PostfixFamily(schema)
    case _ => new FlatFamily(new ConcurrentHashMap[UnsafeRow, Any])
  }

  private def inOrder(schema: StructType, ordinals: Seq[Int]) =
    new ConcurrentSkipListMap[UnsafeRow, Any](new RowOrder(schema, ordinals))
}

private sealed class FlatFamily(rows: util.Map[UnsafeRow, Any]) extends Family {
  override def get(key: UnsafeRow): Any = rows.get(key)
  override def put(key: UnsafeRow, value: Any): Unit = rows.put(key, value)
  override def remove(key: UnsafeRow): Unit = rows.remove(key)
  override def entries: Iterator[Entry] = rows.entrySet.iterator.asScala
  override def size: Long = rows.size.toLong
}

/** Keys in order. */
private final class RangeFamily(rows: util.NavigableMap[UnsafeRow, Any]) extends FlatFamily(rows) {
  override def range(start: Option[UnsafeRow], end: Option[UnsafeRow]): Iterator[Entry] = {
    val from = start.fold(rows)(rows.tailMap(_, true))
    end.fold(from)(from.headMap(_, false)).entrySet.iterator.asScala
  }
}

/** Keys by their first columns. */
private sealed class PrefixFamily(schema: StructType, numColsPrefixKey: Int) extends Family {
  private val groups = new ConcurrentHashMap[UnsafeRow, util.Map[UnsafeRow, Any]]
  private val project = ThreadLocal.withInitial[UnsafeProjection] { () =>
    UnsafeProjection.create(schema.take(numColsPrefixKey).zipWithIndex.map { case (field, i) =>
      BoundReference(i, field.dataType, field.nullable)
    })
  }

  private def prefix(key: UnsafeRow): UnsafeRow = project.get()(key)

  protected def newGroup: util.Map[UnsafeRow, Any] = new util.HashMap

  protected final def groupOf(key: UnsafeRow): util.Map[UnsafeRow, Any] = groups.get(prefix(key))

  override def get(key: UnsafeRow): Any = {
    val group = groupOf(key)
    if (group == null) null else group.get(key)
  }

  override def put(key: UnsafeRow, value: Any): Unit = {
    val of = prefix(key)
    var group = groups.get(of)
    if (group == null) {
      group = newGroup
      groups.put(of.copy(), group)
    }
    group.put(key, value)
  }

  override def remove(key: UnsafeRow): Unit = {
    val of = prefix(key)
    val group = groups.get(of)
    if (group != null) {
      group.remove(key)
      if (group.isEmpty) groups.remove(of)
    }
  }

  override def entries: Iterator[Entry] =
    groups.values.iterator.asScala.flatMap(copied)

  override def scan(prefix: UnsafeRow): Iterator[Entry] = {
    val group = groups.get(prefix)
    if (group == null) Iterator.empty else copied(group)
  }

  // Rows may be removed while they are gone over.
  protected final def copied(group: util.Map[UnsafeRow, Any]): Iterator[Entry] =
    new util.ArrayList(group.entrySet).iterator.asScala

  override def size: Long = groups.values.asScala.map(_.size.toLong).sum
}

/** Keys by all columns but the last, a time, and of the same ones by that. */
private final class PostfixFamily(schema: StructType)
    extends PrefixFamily(schema, schema.length - 1) {
  private val order = new RowOrder(schema, Seq(schema.length - 1))

  override protected def newGroup: util.Map[UnsafeRow, Any] = new util.TreeMap(order)

  /** Both ends, of which there is one at least, have the same first columns. */
  override def range(start: Option[UnsafeRow], end: Option[UnsafeRow]): Iterator[Entry] = {
    val rows = groupOf(start.orElse(end).get).asInstanceOf[util.NavigableMap[UnsafeRow, Any]]
    if (rows == null) Iterator.empty
    else {
      val from = start.fold(rows)(rows.tailMap(_, true))
      copied(end.fold(from)(from.headMap(_, false)))
    }
  }
}

/** By the columns of some ordinals, then by all bytes. */
private final class RowOrder(schema: StructType, ordinals: Seq[Int])
    extends util.Comparator[UnsafeRow] {
  private val columns = new InterpretedOrdering(ordinals.map { i =>
    SortOrder(BoundReference(i, schema(i).dataType, schema(i).nullable), Ascending)
  })

  override def compare(one: UnsafeRow, other: UnsafeRow): Int = {
    val order = columns.compare(one, other)
    if (order != 0) order else Arrays.compareUnsigned(one.getBytes, other.getBytes)
  }
}

private object MapStore {
  val threads: ThreadMXBean = ManagementFactory.getThreadMXBean
}

private final class MapStore(val id: StateStoreId, val version: Long, families: MapFamilies)
    extends UnwrittenStore {
  private type Values = util.ArrayList[UnsafeRow]

  private val nanos = new AtomicLong
  private val begin = System.nanoTime()
  private val beginCpu = MapStore.threads.getCurrentThreadCpuTime

  private def timed[T](body: => T): T = {
    val begin = System.nanoTime()
    try body
    finally nanos.addAndGet(System.nanoTime() - begin)
  }

  private def timedRows[T](rows: => Iterator[T]): Iterator[T] = {
    val inner = timed(rows)
    new Iterator[T] {
      override def hasNext: Boolean = timed(inner.hasNext)
      override def next(): T = timed(inner.next())
    }
  }

  private def family(name: String): Family = families.byName.get(name)

  override def get(key: UnsafeRow, colFamilyName: String): UnsafeRow =
    timed(family(colFamilyName).get(key).asInstanceOf[UnsafeRow])

  override def keyExists(key: UnsafeRow, colFamilyName: String): Boolean =
    timed(family(colFamilyName).get(key) != null)

  override def valuesIterator(key: UnsafeRow, colFamilyName: String): Iterator[UnsafeRow] =
    timed {
      val found = family(colFamilyName).get(key).asInstanceOf[Values]
      if (found == null) Iterator.empty else found.iterator.asScala
    }

  override def iterator(colFamilyName: String): StateStoreIterator[UnsafeRowPair] =
    pairs(family(colFamilyName).entries)

  override def prefixScan(
      prefixKey: UnsafeRow,
      colFamilyName: String): StateStoreIterator[UnsafeRowPair] =
    pairs(family(colFamilyName).scan(prefixKey))

  override def rangeScan(
      startKey: Option[UnsafeRow],
      endKey: Option[UnsafeRow],
      colFamilyName: String): StateStoreIterator[UnsafeRowPair] =
    pairs(family(colFamilyName).range(startKey, endKey))

  override def iteratorWithMultiValues(colFamilyName: String): StateStoreIterator[UnsafeRowPair] =
    listed(family(colFamilyName).entries)

  override def prefixScanWithMultiValues(
      prefixKey: UnsafeRow,
      colFamilyName: String): StateStoreIterator[UnsafeRowPair] =
    listed(family(colFamilyName).scan(prefixKey))

  override def rangeScanWithMultiValues(
      startKey: Option[UnsafeRow],
      endKey: Option[UnsafeRow],
      colFamilyName: String): StateStoreIterator[UnsafeRowPair] =
    listed(family(colFamilyName).range(startKey, endKey))

  private def pairs(
      entries: => Iterator[util.Map.Entry[UnsafeRow, Any]]): StateStoreIterator[UnsafeRowPair] = {
    val pair = new UnsafeRowPair
    new StateStoreIterator(timedRows(entries.map { entry =>
      pair.withRows(entry.getKey, entry.getValue.asInstanceOf[UnsafeRow])
    }))
  }

  private def listed(
      entries: => Iterator[util.Map.Entry[UnsafeRow, Any]]): StateStoreIterator[UnsafeRowPair] = {
    val pair = new UnsafeRowPair
    new StateStoreIterator(timedRows(entries.flatMap { entry =>
      entry.getValue.asInstanceOf[Values].iterator.asScala.map(pair.withRows(entry.getKey, _))
    }))
  }

  override def put(key: UnsafeRow, value: UnsafeRow, colFamilyName: String): Unit =
    timed(family(colFamilyName).put(key.copy(), value.copy()))

  override def putList(key: UnsafeRow, values: Array[UnsafeRow], colFamilyName: String): Unit =
    timed {
      val list = new Values(values.length)
      values.foreach(value => list.add(value.copy()))
      family(colFamilyName).put(key.copy(), list)
    }

  override def merge(key: UnsafeRow, value: UnsafeRow, colFamilyName: String): Unit =
    mergeList(key, Array(value), colFamilyName)

  override def mergeList(key: UnsafeRow, values: Array[UnsafeRow], colFamilyName: String): Unit =
    timed {
      val found = family(colFamilyName).get(key).asInstanceOf[Values]
      val list = if (found == null) new Values(values.length) else found
      values.foreach(value => list.add(value.copy()))
      if (found == null) family(colFamilyName).put(key.copy(), list)
    }

  override def remove(key: UnsafeRow, colFamilyName: String): Unit =
    timed(family(colFamilyName).remove(key))

  override def createColFamilyIfAbsent(
      colFamilyName: String,
      keySchema: StructType,
      valueSchema: StructType,
      keyStateEncoderSpec: KeyStateEncoderSpec,
      useMultipleValuesPerKey: Boolean,
      isInternal: Boolean): Unit = families.create(colFamilyName, keyStateEncoderSpec)

  override def removeColFamilyIfExists(colFamilyName: String): Boolean =
    families.byName.remove(colFamilyName) != null

  override def allColumnFamilyNames: Set[String] = families.byName.keySet.asScala.toSet

  override protected def end(): Unit = {
    // A call is too short to ask for the CPU of each.
    val cpu = MapStore.threads.getCurrentThreadCpuTime - beginCpu
    val share = cpu.toDouble / math.max(1L, System.nanoTime() - begin)
    nanos.updateAndGet(all => (all * math.min(1.0, share)).toLong)
  }

  override def metrics: StateStoreMetrics = StateStoreMetrics(
    families.byName.values.asScala.map(_.size).sum, 0L, Map(MapFamilies.CallNanos -> nanos.get))
}
