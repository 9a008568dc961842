package io.statestore.provider

import java.util.concurrent.ConcurrentHashMap

import com.codahale.metrics.{Counter, Gauge, MetricRegistry}
import io.statestore.engine.Engines

import org.apache.spark.SparkEnv
import org.apache.spark.sql.execution.streaming.state.StateStoreInternals

/**
 * What the stores of one JVM do, as the source `statestore` of Spark's metrics system: whatever
 * sink the user has shows it. Names are those of docs/metrics.md.
 */
private[statestore] final class StoreActivity private {
  val registry = new MetricRegistry

  private val commitMs = registry.histogram("commitMs")
  private val writeMs = registry.histogram("commitWriteMs")
  private val publishMs = registry.histogram("commitPublishMs")
  private val syncMs = registry.histogram("commitSyncMs")
  private val loadMs = registry.histogram("loadMs")
  private val deltaBytes = registry.counter("deltaBytes")
  private val loadedBytes = registry.counter("loadedBytes")
  private val requests: Map[String, Counter] = StoreMetrics.Requests.map { case (kind, _) =>
    kind -> registry.counter(s"storage${kind.capitalize}s")
  }.toMap
  private val snapshotting = ConcurrentHashMap.newKeySet[String]()

  registry.register("engineRssBytes", gauge(Engines.rssBytes))
  registry.register("enginesRunning", gauge(Engines.running.toLong))
  registry.register("engineRestarts", gauge(Engines.restarts))
  registry.register("snapshotsInFlight", gauge(snapshotting.size.toLong))

  private def gauge(value: => Long): Gauge[Long] = () => value

  /** Takes in a commit that took `ms`; its other numbers are in `counters`. */
  def committed(
      store: String, ms: Long, counters: HandleCounters, snapshotInFlight: Boolean): Unit = {
    commitMs.update(ms)
    writeMs.update(counters(StoreMetrics.DeltaWriteMs))
    publishMs.update(counters(StoreMetrics.PublishMs))
    syncMs.update(counters(StoreMetrics.FileSyncMs))
    deltaBytes.inc(counters(StoreMetrics.DeltaBytes))
    if (snapshotInFlight) snapshotting.add(store) else snapshotting.remove(store)
    ()
  }

  /** Takes in a load of a version from files. */
  def loaded(ms: Long, bytes: Long): Unit = {
    loadMs.update(ms)
    loadedBytes.inc(bytes)
  }

  /** Takes in requests to the storage. */
  def requested(kind: String, number: Long): Unit = requests(kind).inc(number)

  /** A store is closed: what it did stays counted. */
  def closed(store: String): Unit = {
    snapshotting.remove(store)
    ()
  }
}

private[statestore] object StoreActivity {
  // Both guarded by this.
  private[this] var application: SparkEnv = _
  private[this] var activity = new StoreActivity

  /** That of the running application; it is registered when it is first asked for. */
  def current: StoreActivity = synchronized {
    val running = SparkEnv.get
    if (running != null && (running ne application)) {
      application = running
      activity = new StoreActivity
      StateStoreInternals.registerMetrics("statestore", activity.registry)
    }
    activity
  }
}
