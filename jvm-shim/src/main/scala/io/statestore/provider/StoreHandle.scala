package io.statestore.provider

import java.util.LinkedHashMap

import scala.collection.mutable
import scala.jdk.CollectionConverters._
import scala.util.control.NonFatal

import io.statestore.ShimErrors
import io.statestore.keygroup.KeyGroups
import io.statestore.view._
import org.apache.spark.TaskContext
import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.types.StructType

/**
 * One version of a store opened by one task: the committed rows of `view` with this task's writes
 * on top. It serves as read store and as write store; a read store that is upgraded goes on as
 * the same object.
 *
 * The handle keeps its view open until the task ends, since rows it returned point into it;
 * without a task, until commit, abort or release. Calls need not come from one thread but must
 * not overlap.
 */
private[statestore] final class StoreHandle(
    val provider: ViewStateStoreProvider,
    context: StoreContext,
    view: WorkingView,
    counters: HandleCounters,
    readOnly: Boolean)
    extends StateStore
    with StoreMembers {
  private val base = view.version
  private val keyGroups = new KeyGroups(view.maxParallelism)
  private var overlay = new Overlay(
    keyGroups,
    context.options.overlayMaxBytes,
    () => context.engines.scratchFile("run"),
    context.keepsRowsByKey,
    makeRoom = () => context.makeRoom())
  // Asked for every row. A map of Scala's takes longer to compare the names than all else does.
  private val byName = new LinkedHashMap[String, FamilyState]
  private val families = byName.asScala
  private val removed = mutable.HashMap.empty[String, ColumnFamily]
  private val evictions = new Evictions
  private var nextFamilyId = 0
  private var writable = !readOnly
  private var forceSnapshot = false
  private var validated = context.useColumnFamilies
  private var committed: Option[Committed] = None
  private var commitMs = 0L
  @volatile private var accepting = true // until commit, abort, release or the task's end
  private var holdsView = true

  view.families.foreach(open)
  provider.registeredFamilies.filterNot(f => families.contains(f.name)).foreach(open)
  private val task = TaskContext.get()
  if (task != null) task.addTaskCompletionListener[Unit](_ => endOfTask())

  override def id: StateStoreId = context.storeId

  override def version: Long = base.number

  /** Turns a read store into the write store of the same version. */
  def upgrade(force: Boolean): StateStore = {
    writable = true
    forceSnapshot ||= force
    this
  }

  def isOpen: Boolean = accepting

  def isOfThisTask: Boolean = task != null && (task eq TaskContext.get())

  // ---- reading ----

  override def get(key: UnsafeRow, colFamilyName: String): UnsafeRow = {
    require(key != null, "Key cannot be null")
    counters.gets += 1
    val value = reading("get", colFamilyName).get(key)
    if (!validated && value != null) validate(key, value)
    value
  }

  override def multiGet(keys: Array[UnsafeRow], colFamilyName: String): Iterator[UnsafeRow] =
    keys.iterator.map(get(_, colFamilyName))

  override def keyExists(key: UnsafeRow, colFamilyName: String): Boolean = {
    require(key != null, "Key cannot be null")
    counters.gets += 1
    reading("keyExists", colFamilyName).keyExists(key)
  }

  override def valuesIterator(key: UnsafeRow, colFamilyName: String): Iterator[UnsafeRow] = {
    require(key != null, "Key cannot be null")
    counters.gets += 1
    multiValued("valuesIterator", reading("valuesIterator", colFamilyName)).values(key)
  }

  override def iterator(colFamilyName: String): StateStoreIterator[UnsafeRowPair] =
    reading("iterator", colFamilyName).iterator()

  override def iteratorWithMultiValues(colFamilyName: String): StateStoreIterator[UnsafeRowPair] =
    reading("iteratorWithMultiValues", colFamilyName).iteratorWithMultiValues()

  override def prefixScan(
      prefixKey: UnsafeRow,
      colFamilyName: String): StateStoreIterator[UnsafeRowPair] = {
    val (state, from, until) = prefixBounds("prefixScan", prefixKey, colFamilyName)
    state.scan(from, until)
  }

  override def prefixScanWithMultiValues(
      prefixKey: UnsafeRow,
      colFamilyName: String): StateStoreIterator[UnsafeRowPair] = {
    val (state, from, until) = prefixBounds("prefixScanWithMultiValues", prefixKey, colFamilyName)
    multiValued("prefixScanWithMultiValues", state).scanWithMultiValues(from, until)
  }

  override def rangeScan(
      startKey: Option[UnsafeRow],
      endKey: Option[UnsafeRow],
      colFamilyName: String): StateStoreIterator[UnsafeRowPair] = {
    val state = ranged("rangeScan", colFamilyName)
    state.scan(bound(state, startKey), bound(state, endKey))
  }

  override def rangeScanWithMultiValues(
      startKey: Option[UnsafeRow],
      endKey: Option[UnsafeRow],
      colFamilyName: String): StateStoreIterator[UnsafeRowPair] = {
    val state = multiValued("rangeScanWithMultiValues", ranged("rangeScan", colFamilyName))
    state.scanWithMultiValues(bound(state, startKey), bound(state, endKey))
  }

  // For Spark 4.3: see `StoreMembers`.
  protected def allRows(colFamilyName: String): StateStoreIterator[UnsafeRowPair] = {
    val state = reading("reusableIterator", colFamilyName)
    // With a bound: few of the rows are read, so the view need not make ready for all.
    if (state.family.ordered) state.scan(Array.emptyByteArray, null) else state.iterator()
  }

  protected def rowsFrom(
      prefixKey: UnsafeRow,
      colFamilyName: String): StateStoreIterator[UnsafeRowPair] = {
    val state = reading("refreshAndSeekToPrefix", colFamilyName)
    if (!state.family.spec.isInstanceOf[RangeKeyScanStateEncoderSpec]) {
      throw StateStoreErrors.unsupportedOperationException("refreshAndSeekToPrefix", colFamilyName)
    }
    state.scan(state.keyCodec.encodePrefix(prefixKey), null)
  }

  override def allColumnFamilyNames: Set[String] = families.keySet.toSet

  // ---- column families ----

  override def registerColFamily(
      colFamilyName: String,
      keySchema: StructType,
      valueSchema: StructType,
      keyStateEncoderSpec: KeyStateEncoderSpec,
      useMultipleValuesPerKey: Boolean,
      isInternal: Boolean): Unit = {
    createColFamilyIfAbsent(
      colFamilyName,
      keySchema,
      valueSchema,
      keyStateEncoderSpec,
      useMultipleValuesPerKey,
      isInternal)
    // The state data source registers with one read store and reads with the next.
    provider.register(families(colFamilyName).family)
  }

  override def createColFamilyIfAbsent(
      colFamilyName: String,
      keySchema: StructType,
      valueSchema: StructType,
      keyStateEncoderSpec: KeyStateEncoderSpec,
      useMultipleValuesPerKey: Boolean,
      isInternal: Boolean): Unit = {
    checkFamilyName("create", colFamilyName, isInternal)
    val known = families.get(colFamilyName).map(_.family).orElse(removed.get(colFamilyName))
    val wanted = ColumnFamily(
      known.fold(nextFamilyId)(_.id),
      colFamilyName,
      keyStateEncoderSpec,
      valueSchema,
      useMultipleValuesPerKey,
      isInternal,
      context.valueSchemas(colFamilyName, valueSchema, known))
    known.filterNot(_.sameLayout(wanted)).foreach { stored =>
      throw ShimErrors.schemaChanged(id, stored, wanted)
    }
    // Also where a description alone is another one: by it operations find the watermark's column.
    if (families.get(colFamilyName).forall(_.family != wanted)) {
      ValueCodec.check(wanted)
      removed.remove(colFamilyName)
      open(wanted)
    }
  }

  override def removeColFamilyIfExists(colFamilyName: String): Boolean = {
    checkFamilyName("remove", colFamilyName, isInternal = false)
    writing("removeColFamilyIfExists")
    families.get(colFamilyName) match {
      case None => false
      case Some(state) =>
        state.removeAll()
        families.remove(colFamilyName)
        removed.put(colFamilyName, state.family)
        true
    }
  }

  // ---- writing ----

  override def put(key: UnsafeRow, value: UnsafeRow, colFamilyName: String): Unit = {
    require(key != null, "Key cannot be null")
    require(value != null, "Cannot put a null value")
    counters.puts += 1
    evictions.written()
    writing("put", colFamilyName).put(key, value)
  }

  override def putList(key: UnsafeRow, values: Array[UnsafeRow], colFamilyName: String): Unit =
    writeValues("putList", key, values, colFamilyName, append = false)

  override def merge(key: UnsafeRow, value: UnsafeRow, colFamilyName: String): Unit = {
    require(value != null, "Cannot merge a null value")
    writeValues("merge", key, Array(value), colFamilyName, append = true)
  }

  override def mergeList(key: UnsafeRow, values: Array[UnsafeRow], colFamilyName: String): Unit =
    writeValues("mergeList", key, values, colFamilyName, append = true)

  override def remove(key: UnsafeRow, colFamilyName: String): Unit = {
    require(key != null, "Key cannot be null")
    val state = writing("remove", colFamilyName)
    if (!evictions.isEarly(key, state)) state.remove(key)
  }

  override def deleteRange(beginKey: UnsafeRow, endKey: UnsafeRow, colFamilyName: String): Unit = {
    val state = writing("deleteRange", colFamilyName)
    if (!state.keyCodec.supportsDeleteRange) {
      throw StateStoreErrors.unsupportedOperationException("deleteRange", colFamilyName)
    }
    state.removeRange(state.keyCodec.encodeBound(beginKey), state.keyCodec.encodeBound(endKey))
  }

  // ---- the end ----

  /**
   * Makes the writes durable as the next version.
   *
   * Guarantee: when it returns, a restart can load the version. When it raises, the handle accepts
   * nothing but abort. Where only Spark's coordinator was not told, the version is durable and the
   * view follows. Else the view is what it was; whether the version became durable is unknown only
   * when the engine could not be asked again.
   */
  override def commit(): Long = {
    writing("commit")
    try {
      val start = System.nanoTime()
      val current = families.values.map(_.family).toSeq
      val done = StoreCommit.inRoom(context) {
        new StoreCommit(context, view, overlay, current, counters, forceSnapshot)
      }
      counters.add(StoreMetrics.EngineCalls, provider.takeCalls())
      committed = Some(done)
      commitMs = (System.nanoTime() - start) / 1000000L
      StoreActivity.current.committed(
        context.directory,
        commitMs,
        counters,
        done.snapshot.path("in_flight").asBoolean)
      accepting = false
      provider.committed(done)
      overlay.allFamilies.foreach(context.giveBack(_, view.maxParallelism))
      if (task == null) endOfTask()
      done.version.number
    } catch {
      case NonFatal(e) =>
        abort()
        // Another attempt has replaced the version this view shows: the next one must load it.
        if (ShimErrors.isFenced(e)) provider.forget(view)
        throw ShimErrors.cannotCommit(id, base.number + 1, e)
    }
  }

  override def abort(): Unit = {
    accepting = false
    if (task == null) releaseView()
  }

  override def release(): Unit = abort()

  override def hasCommitted: Boolean = committed.isDefined

  override def metrics: StateStoreMetrics = {
    val shown = committed.map(_.numKeys).getOrElse(view.numKeys)
    SparkVersion.metrics(
      shown,
      if (holdsView) view.bytes + overlay.heapBytes else provider.memoryUsedBytes(view),
      counters.toMap,
      OfStore(
        id, provider.lastSnapshotVersion, commitMs, counters(StoreMetrics.VersionBytes)))
  }

  override def getStateStoreCheckpointInfo(): StateStoreCheckpointInfo = {
    val done = committed.getOrElse(
      throw new IllegalStateException(s"store is not committed: store=$id, version=$version"))
    val withIds = context.checkpointFormat >= 2
    StateStoreCheckpointInfo(
      id.partitionId,
      done.version.number,
      Option.when(withIds)(done.version.checkpointId),
      Option.when(withIds)(base.checkpointId).filter(_ != null))
  }

  override def toString: String =
    s"StateStore[id=(op=${id.operatorId},part=${id.partitionId}),name=${id.storeName}," +
      s"version=$version,dir=${context.directory}]"

  // ---- helpers ----

  private def open(family: ColumnFamily): Unit = {
    nextFamilyId = math.max(nextFamilyId, family.id + 1)
    families.put(family.name, new FamilyState(
      family,
      view.family(family.name),
      overlay,
      () => overlay.family(
        family,
        context.keyGroupFunction(family, view.maxParallelism),
        context.expectedKeys(family))))
  }

  private def reading(operation: String, colFamilyName: String): FamilyState = {
    if (!accepting) throw closed(operation)
    state(operation, colFamilyName)
  }

  private def writing(operation: String, colFamilyName: String): FamilyState = {
    writing(operation)
    state(operation, colFamilyName)
  }

  private def writing(operation: String): Unit = {
    if (!accepting) throw closed(operation)
    if (!writable) {
      throw StateStoreErrors.unsupportedOperationException(operation, "read-only state store")
    }
    provider.checkNotClosed(operation)
  }

  private def state(operation: String, colFamilyName: String): FamilyState = {
    val found = byName.get(colFamilyName)
    if (found == null) {
      throw StateStoreErrors.unsupportedOperationOnMissingColumnFamily(operation, colFamilyName)
    }
    found
  }

  private def writeValues(
      operation: String,
      key: UnsafeRow,
      values: Array[UnsafeRow],
      colFamilyName: String,
      append: Boolean): Unit = {
    require(key != null, "Key cannot be null")
    require(
      values != null && values.nonEmpty && values.forall(_ != null),
      s"Cannot $operation null")
    counters.puts += 1
    evictions.written()
    multiValued(operation, writing(operation, colFamilyName))
      .putValues(key, values.iterator, append)
  }

  private def multiValued(operation: String, state: FamilyState): FamilyState = {
    if (!state.family.multiValues) {
      throw StateStoreErrors.unsupportedOperationException(
        operation,
        s"column family ${state.family.name}, which holds one value per key")
    }
    state
  }

  private def prefixBounds(
      operation: String,
      prefixKey: UnsafeRow,
      colFamilyName: String): (FamilyState, Array[Byte], Array[Byte]) = {
    val state = reading(operation, colFamilyName)
    require(state.keyCodec.supportsPrefixScan, "Prefix scan requires setting prefix key!")
    val from = state.keyCodec.encodePrefix(prefixKey)
    (state, from, KeyCodec.afterPrefix(from))
  }

  private def ranged(operation: String, colFamilyName: String): FamilyState = {
    val state = reading(operation, colFamilyName)
    if (!state.keyCodec.supportsRangeScan) {
      throw StateStoreErrors.unsupportedOperationException(operation, colFamilyName)
    }
    state
  }

  private def bound(state: FamilyState, key: Option[UnsafeRow]): Array[Byte] =
    key.map(state.keyCodec.encodeBound).orNull

  private def checkFamilyName(operation: String, name: String, isInternal: Boolean): Unit = {
    if (!context.useColumnFamilies) {
      throw StateStoreErrors.multipleColumnFamiliesNotSupported(provider.toString)
    }
    if (name == null || name.isEmpty || name.trim != name ||
      name == StateStore.DEFAULT_COL_FAMILY_NAME) {
      throw StateStoreErrors.cannotUseColumnFamilyWithInvalidName(operation, name)
    }
    if (!isInternal && operation == "create" && name.startsWith("$")) {
      throw StateStoreErrors.cannotCreateColumnFamilyWithReservedChars(name)
    }
  }

  private def validate(key: UnsafeRow, value: UnsafeRow): Unit = {
    val family = context.defaultFamily
    SparkVersion.validateRow(
      key, family.spec.keySchema, value, family.valueSchema, id, context.storeConf)
    validated = true
  }

  private def closed(operation: String): Throwable =
    ShimErrors.cannotCommit(
      id,
      base.number + 1,
      new IllegalStateException(
        s"the state store was committed or aborted already: operation=$operation"))

  /** Whoever keeps the handle must not keep the batch. */
  private def endOfTask(): Unit = {
    accepting = false
    releaseView()
    families.clear()
    evictions.written()
    overlay = null
  }

  private def releaseView(): Unit = if (holdsView) {
    holdsView = false
    overlay.close()
    if (committed.isEmpty) overlay.free()
    provider.release(view, committed.map(_.advance))
    committed = committed.map(_.copy(advance = null))
  }
}
