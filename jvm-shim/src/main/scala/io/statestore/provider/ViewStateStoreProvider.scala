package io.statestore.provider

import scala.util.control.NonFatal

import com.fasterxml.jackson.databind.JsonNode
import com.fasterxml.jackson.databind.node.ObjectNode
import io.statestore.{Background, EngineUnavailableException, Resources, ShimErrors, ShimOptions}
import io.statestore.engine.QueryRuns
import io.statestore.rocksdb.DamagedViewException
import io.statestore.view.{ColumnFamily, WorkingView, ViewAdvance}
import org.apache.hadoop.conf.Configuration
import org.apache.spark.TaskContext
import org.apache.spark.internal.Logging
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.types.StructType

/**
 * A provider that serves a view of committed rows, on the JVM heap or in RocksDB; the engine behind
 * it keeps what is durable.
 *
 * One view is cached, at the version last committed or loaded. It is changed in place by a commit
 * or a roll-back only while no other handle is open on it; otherwise the next `getStore` loads a
 * view of its own and the open handles keep the old one.
 */
abstract class ViewStateStoreProvider(backend: String)
    extends OfOneSpark
    with StateStoreProvider
    with ProviderMembers
    with SupportsFineGrainedReplay
    with Logging {

  // The driver makes an instance to ask for metric names while it plans, before any task runs.
  if (QueryRuns.offer()) Leases.watch()

  // Everything below is set by init; the driver makes instances only to ask for metric names.
  private var context: StoreContext = _
  private var loader: ViewLoader = _

  private val lock = new Object
  private var current: WorkingView = _
  private var appliedInMs = 0L
  private var lastRead: StoreHandle = _
  private var pending: ViewAdvance = _ // what `current` is still to be brought to
  @volatile private var registered = Map.empty[String, ColumnFamily]
  @volatile private var snapshotVersion = -1L
  private var latest: Option[(Long, String)] = None
  private var cleanedUpTo = 0L
  private var snapshotAskedAt = 0L
  @volatile private var wasServed = false // by the engine, which then knows the store
  @volatile private var closed = false
  @volatile private var hasLetGo = false // of the view, which is not kept for another handle

  override def init(
      stateStoreId: StateStoreId,
      keySchema: StructType,
      valueSchema: StructType,
      keyStateEncoderSpec: KeyStateEncoderSpec,
      useColumnFamilies: Boolean,
      storeConfs: StateStoreConf,
      hadoopConf: Configuration,
      useMultipleValuesPerKey: Boolean,
      stateSchemaProvider: Option[StateSchemaProvider]): Unit = {
    val encoding = storeConfs.stateStoreEncodingFormat
    if (encoding != "unsaferow" && encoding != "avro") {
      throw new IllegalArgumentException(
        "[invalid-option] state encoding is not supported: " +
          s"spark.sql.streaming.stateStore.encodingFormat='$encoding'. " +
          "To fix: set it to 'unsaferow', or to 'avro' where schemas of state variables change")
    }
    context = new StoreContext(
      backend,
      stateStoreId,
      ColumnFamily(
        ColumnFamily.DefaultId,
        StateStore.DEFAULT_COL_FAMILY_NAME,
        keyStateEncoderSpec,
        valueSchema,
        useMultipleValuesPerKey,
        internal = false),
      useColumnFamilies,
      stateSchemaProvider.filter(_ => encoding == "avro"),
      storeConfs,
      hadoopConf,
      ShimOptions.parse(storeConfs.sqlConfs))
    loader =
      if (context.keepsRowsByKey) new RocksDBViewLoader(context) else new PagedViewLoader(context)
  }

  override def stateStoreId: StateStoreId = context.storeId

  /** Asked for by the driver while it plans: what the constructor raised would have no text. */
  override def supportedCustomMetrics: Seq[StateStoreCustomMetric] = {
    QueryStarts.planned()
    StoreMetrics.All
  }

  override def getStore(
      version: Long,
      stateStoreCkptId: Option[String],
      forceSnapshotOnCommit: Boolean,
      loadEmpty: Boolean): StateStore = {
    val handle = openHandle(version, stateStoreCkptId, readOnly = false, loadEmpty)
    handle.upgrade(forceSnapshotOnCommit)
  }

  override def getReadStore(version: Long, uniqueId: Option[String]): ReadStateStore = {
    val handle = openHandle(version, uniqueId, readOnly = true, loadEmpty = false)
    lock.synchronized { lastRead = handle }
    handle
  }

  /** The read store that the running task has opened last, while it is open. */
  def readStoreOfTask: Option[ReadStateStore] =
    lock.synchronized(Option(lastRead).filter(handle => handle.isOpen && handle.isOfThisTask))

  /**
   * Spark may hand in the read store of another operator of the same task (it keeps one per
   * thread); such a store, or one of another version, is left alone and a store of our own is
   * opened.
   */
  override def upgradeReadStoreToWriteStore(
      readStore: ReadStateStore,
      version: Long,
      uniqueId: Option[String],
      forceSnapshotOnCommit: Boolean): StateStore = readStore match {
    case handle: StoreHandle
        if (handle.provider eq this) && handle.isOpen && handle.version == version =>
      handle.upgrade(forceSnapshotOnCommit)
    case _ => getStore(version, uniqueId, forceSnapshotOnCommit, loadEmpty = false)
  }

  override def replayStateFromSnapshot(
      snapshotVersion: Long,
      endVersion: Long,
      readOnly: Boolean,
      snapshotVersionStateStoreCkptId: Option[String],
      endVersionStateStoreCkptId: Option[String]): StateStore = loading(endVersion) {
    val counters = new HandleCounters
    val view = loader.load(
      endVersion,
      endVersionStateStoreCkptId,
      Some((snapshotVersion, snapshotVersionStateStoreCkptId)),
      counters)
    newHandle(view, counters, readOnly)
  }

  override def getStateStoreChangeDataReader(
      startVersion: Long,
      endVersion: Long,
      colFamilyNameOpt: Option[String],
      endVersionStateStoreCkptId: Option[String]): ChangeDataReader = loading(endVersion) {
    val request = context.request("changes")
    request.put("start_version", startVersion).put("end_version", endVersion)
    request.put("checkpoint_id", endVersionStateStoreCkptId.orNull)
    val directory = context.engines.scratchFile("changes")
    request.put("directory", directory.getPath)
    val name = colFamilyNameOpt.getOrElse(StateStore.DEFAULT_COL_FAMILY_NAME)
    def removeFiles(): Unit = context.engines.removeScratch(directory)
    try new ChangeReader(context.call(request), name, () => removeFiles())
    catch {
      case e: Throwable =>
        removeFiles()
        throw e
    }
  }

  override def doSnapshotMaintenance(): Unit =
    maintain("snapshot", snapshotAskedAt)(version => snapshotAskedAt = version)

  override def doCleanupMaintenance(): Unit =
    maintain("cleanup", cleanedUpTo)(version => cleanedUpTo = version)

  override def doMaintenance(): Unit = {
    doSnapshotMaintenance()
    doCleanupMaintenance()
  }

  override def close(): Unit = {
    closed = true
    if (SparkVersion.closesUnderLock) ViewStateStoreProvider.background.execute(() => end())
    else end()
  }

  /** Waits for a load that goes on, and for the engine, of which each may take long. */
  private def end(): Unit = {
    lock.synchronized(drop())
    if (wasServed) {
      ViewHolders.closed(context.directory, this)
      StoreActivity.current.closed(context.directory)
      closeInEngine()
    }
  }

  private def closeInEngine(): Unit =
    try context.engines.callIfRunning(context.directory, context.request("close"))
    catch { case NonFatal(e) => logInfo(s"engine did not close a store: $toString", e) }

  override def toString: String =
    if (context == null) getClass.getSimpleName
    else s"${getClass.getSimpleName}[store=${context.directory}]"

  // ---- for handles ----

  private[statestore] def checkNotClosed(operation: String): Unit = if (closed) {
    throw new IllegalStateException(
      s"state store provider is closed: operation=$operation, store=${context.directory}")
  }

  /** Column families registered for reading, which later read stores know too. */
  private[statestore] def registeredFamilies: Iterable[ColumnFamily] = registered.values

  private[statestore] def register(family: ColumnFamily): Unit =
    lock.synchronized(registered += family.name -> family)

  /** Gives the cached view up: what it shows is no longer what storage holds. */
  private[statestore] def forget(view: WorkingView): Unit =
    lock.synchronized {
      if (view eq current) drop()
    }

  private def drop(): Unit = {
    if (current != null) current.retire()
    current = null
    if (pending != null) pending.end()
    pending = null
  }

  private[provider] def run: String = context.run

  /** Gives up the view, as soon as no handle is open on it, until a store is opened again. */
  private[provider] def letGo(): Unit = {
    hasLetGo = true
    lock.synchronized(dropIfLeft())
  }

  private def dropIfLeft(): Unit =
    if (hasLetGo && current != null && current.openHandles == 0) drop()

  /** Engine calls made for the view since the last commit, on whichever thread. */
  private[statestore] def takeCalls(): Long = loader.takeCalls()

  private[statestore] def lastSnapshotVersion: Long = snapshotVersion

  private[statestore] def memoryUsedBytes(view: WorkingView): Long = lock.synchronized {
    settle()
    view.bytes
  }

  /**
   * Ends a handle's use of a view. With `advance`, what it committed, the view is brought to the
   * new version, on another thread or by the next store if that comes first: between batches there
   * is time. Where other handles read the view it is left to them, and the next store loads its
   * own.
   */
  private[statestore] def release(view: WorkingView, advance: Option[ViewAdvance]): Unit = {
    val isDamaged = view.isDamaged // of a view that is not closed
    lock.synchronized {
      view.release()
      if (lastRead != null && !lastRead.isOpen) lastRead = null
      advance.foreach { wanted =>
        if (view.openHandles == 0 && (view eq current)) {
          pending = wanted
          ViewStateStoreProvider.background.execute(() => lock.synchronized(settle()))
        } else {
          if (view.openHandles > 0) forget(view)
          wanted.end()
        }
      }
      dropIfLeft()
      if (view.isUnfit) forget(view)
    }
    if (isDamaged) distrust()
    // A task that outlives its provider may have had the engine open the store again.
    if (closed) closeInEngine()
  }

  /** Has the engine build anew what the local disk has of the store. */
  private def distrust(): Unit =
    try {
      logWarning(s"the state on the local disk is damaged, and built anew: $toString")
      context.call(context.request("distrust"))
      ()
    } catch { case NonFatal(e) => logWarning(s"it was not removed: $toString", e) }

  /** Brings the view to the version that was committed on it. */
  private def settle(): Unit = if (pending != null) {
    val started = System.nanoTime()
    val wanted = pending
    pending = null
    try current.advance(wanted)
    catch {
      case e: Throwable =>
        drop() // half advanced
        if (!NonFatal(e)) throw e
        if (e.isInstanceOf[DamagedViewException]) distrust()
        logWarning(
          s"the rows in memory were dropped, the next batch loads them all: $toString, " +
            s"version=${wanted.version.number}: ${e.getMessage}",
          e)
    } finally wanted.end()
    appliedInMs = (System.nanoTime() - started) / 1000000L
  }

  /** A commit is durable: tells those who want to know. */
  private[statestore] def committed(done: Committed): Unit = {
    lock.synchronized {
      latest = Some((done.version.number, done.version.checkpointId))
    }
    SparkVersion.reportCommit(
      done.version.number, context.storeId, context.storeConf, context.hadoopConf)
    noteSnapshot(done.snapshot)
  }

  // ---- helpers ----

  private def openHandle(
      version: Long,
      checkpointId: Option[String],
      readOnly: Boolean,
      loadEmpty: Boolean): StoreHandle = loading(version) {
    if (version < 0) throw StateStoreInternals.unexpectedStateStoreVersion(version)
    if (!readOnly) context.checkWritable()
    Leases.hold(context)
    if (context.isOfQuery) {
      hasLetGo = false
      ViewHolders.hold(context.directory, this)
    }
    val counters = new HandleCounters
    lock.synchronized {
      checkNotClosed("getStore")
      val view =
        if (loadEmpty) {
          forget(current) // it may show the very version that this store replaces
          loader.load(0L, None, None, counters, shownAs = Some(version))
        } else {
          acquire(version, checkpointId, counters)
        }
      newHandle(view, counters, readOnly)
    }
  }

  private def newHandle(
      view: WorkingView,
      counters: HandleCounters,
      readOnly: Boolean): StoreHandle = {
    lock.synchronized {
      view.open()
      if (view ne current) view.retire()
    }
    try new StoreHandle(this, context, view, counters, readOnly)
    catch {
      // Its task was killed, for one: nobody else would end the use of the view.
      case e: Throwable =>
        release(view, None)
        throw e
    }
  }

  /**
   * The view of a version: the cached one, which may be of another attempt with the same rows, the
   * cached one rolled back, or a loaded one.
   */
  private def acquire(
      version: Long,
      checkpointId: Option[String],
      counters: HandleCounters): WorkingView = {
    settle()
    counters.add(StoreMetrics.ApplyMs, appliedInMs)
    appliedInMs = 0L
    def isWanted(number: Long, id: String): Boolean =
      number == version && checkpointId.forall(_ == id)
    val cached = current
    if (cached != null && isWanted(cached.version.number, cached.version.checkpointId)) {
      cached
    } else if (cached != null && cached.openHandles == 0 && cached.previous != null &&
      isWanted(cached.previous.number, cached.previous.checkpointId)) {
      try cached.rollBack()
      catch {
        case e: Throwable =>
          drop() // half rolled back
          throw e
      }
      counters.add(StoreMetrics.RollBacks, 1L)
      cached
    } else if (cached != null && cached.openHandles == 0 && cached.version.number == version &&
      cached.version.lineage != null && loader.isSame(cached.version, checkpointId.get, counters)) {
      cached.becomeAttempt(checkpointId.get)
      cached
    } else {
      drop() // give the memory back before the next view is built
      current = loader.load(version, checkpointId, None, counters)
      current
    }
  }

  private def loading[T](version: Long)(body: => T): T =
    try {
      closeWithFailedTask()
      wasServed = true
      body
    }
    catch {
      case NonFatal(e) if !ShimErrors.isInterruption(e) =>
        logWarning(s"state store was not loaded: store=${context.directory}, version=$version", e)
        if (e.isInstanceOf[DamagedViewException]) distrust()
        throw ShimErrors.cannotLoad(backend, context.storeId, e)
    }

  /** Spark closes the provider of a reader only where its store was opened. */
  private def closeWithFailedTask(): Unit = {
    val task = TaskContext.get()
    if (task != null && !wasServed && !context.isOfQuery) {
      task.addTaskFailureListener((_, _) => close())
    }
  }

  /**
   * Maintenance must not raise: Spark would close the provider. That of a run that was stopped does
   * nothing: Spark calls it once more, and the checkpoint may have been changed meanwhile.
   */
  private def maintain(what: String, doneUpTo: Long)(done: Long => Unit): Unit = {
    val known = lock.synchronized(latest)
    known.filter(_._1 > doneUpTo).foreach { case (version, checkpointId) =>
      try {
        val request: ObjectNode = context.request("maintain")
        request.put("version", version)
        request.put("checkpoint_id", checkpointId)
        request.put("snapshot", what == "snapshot").put("cleanup", what == "cleanup")
        // Snapshots of all stores take turns: an engine with many of them does not hang.
        request.put("wait_ms", context.options.engineCallTimeoutMs / 2)
        Leases.whileHeld(context, deletes = what == "cleanup") {
          val reply = context.call(request)
          // A cleanup whose time was up goes on with the next maintenance.
          if (reply.get("files_left").asLong == 0) done(version)
          noteSnapshot(reply.get("snapshot"))
        }
      } catch {
        // Spark's maintenance threads outlive the application, and with it the engines, a little.
        case e: EngineUnavailableException =>
          logInfo(s"no engine for maintenance: task=$what, error=${e.getMessage}")
        case NonFatal(e) =>
          logWarning(s"maintenance failed: task=$what, store=${context.directory}", e)
      }
    }
  }

  /**
   * Tells Spark's coordinator of a new snapshot, so that it does not count the store as lagging.
   */
  private def noteSnapshot(snapshot: JsonNode): Unit = {
    val version = snapshot.get("version").asLong
    if (version > snapshotVersion) {
      snapshotVersion = version
      if (SparkVersion.reportsSnapshots(context.storeConf)) {
        // Of a commit that is durable whether the driver hears of its snapshot or not.
        try {
          val id = StateStoreProviderId(
            context.storeId, StateStoreInternals.runId(context.hadoopConf))
          SparkVersion.reportSnapshot(id, version, System.currentTimeMillis())
        } catch {
          case NonFatal(e) =>
            logWarning(s"snapshot was not reported: store=${context.directory}", e)
        }
      }
    }
  }
}

private[provider] object ViewStateStoreProvider {

  /** Advance views, and let go of them. */
  lazy val background = Background.threads(
    "statestore-advance", math.max(1, Runtime.getRuntime.availableProcessors / 2))
}

/** Checks the Spark before the constructor of a trait of Spark's calls what another Spark lacks. */
private[provider] abstract class OfOneSpark {
  Resources.checkSpark()
}
