package org.apache.spark.sql.execution.streaming.state

import java.util.UUID
import java.util.concurrent.ConcurrentHashMap

import io.statestore.{Backends, ShimOptions}

import org.apache.spark.internal.Logging
import org.apache.spark.sql
import org.apache.spark.sql.catalyst.streaming.WriteToStream
import org.apache.spark.sql.classic.SparkSession
import org.apache.spark.sql.execution.streaming.runtime.StreamExecution
import org.apache.spark.sql.internal.SQLConf
import org.apache.spark.sql.streaming.StreamingQueryListener
import org.apache.spark.sql.streaming.StreamingQueryListener._

/**
 * Gives the queries of a session what Spark gives to its own RocksDB provider only, by the name of
 * the class. The configuration of a query is its own: neither the session nor another query is
 * touched.
 *
 * - The provider that `spark.statestore.providerClass` names. In a session that has Spark's own key
 *   Spark refuses real-time mode.
 * - The number of state partitions that the option `partitions` asks for, where the query is new;
 *   that of a checkpoint is the same, or `QueryStarts` has refused it.
 * - The state format of joins that the session asks for (`SparkCalls.keepJoinFormat`).
 *
 * A query without a `checkpointLocation` keeps its state in its temporary checkpoint, whatever the
 * option `checkpointStorage` says: Spark deletes nothing elsewhere when the query ends.
 */
object QueryProviders extends Logging {
  val Key = "spark.statestore.providerClass"
  private val Partitions = ShimOptions.Prefix + "partitions"
  private val Storage = ShimOptions.Prefix + "checkpointStorage"

  /** Checkpoint directories that Spark deletes, of queries that are about to start. */
  private val temporary = ConcurrentHashMap.newKeySet[String]()

  /** The provider that the queries of a session have, unless their checkpoint pins another. */
  def of(conf: SQLConf): String =
    if (conf.contains(SQLConf.STATE_STORE_PROVIDER_CLASS.key)) conf.stateStoreProviderClass
    else conf.getConfString(Key, conf.stateStoreProviderClass)

  /** The number of state partitions that the option asks for. */
  def partitions(conf: SQLConf): Option[Int] =
    Some(conf.getConfString(Partitions, "0").trim.toInt).filter(_ > 0)

  /**
   * From now on, looks after the queries that a session starts, where its provider is one of this
   * package.
   *
   * @param write the query that it starts now
   * @throws java.lang.IllegalArgumentException the key names no provider of this package
   */
  def watch(session: sql.SparkSession, write: WriteToStream): Unit = session match {
    case classic: SparkSession =>
      val conf = classic.sessionState.conf
      val providers = Backends.Providers.values.toSeq
      val named = conf.getConfString(Key, providers.head)
      if (!providers.contains(named)) {
        throw new IllegalArgumentException(
          s"[invalid-option] no such provider: key=$Key, value=$named. To fix: use one of " +
            providers.mkString(", "))
      }
      if (write.deleteCheckpointOnStop && conf.contains(Storage) &&
        StateStoreInternals.isStateful(write.inputQuery)) {
        temporary.add(write.resolvedCheckpointLocation)
      }
      val streams = classic.streams
      if (Backends.isOurs(of(conf)) && !streams.listListeners().exists(_.isInstanceOf[Starts])) {
        val active = classic.sharedState.activeStreamingQueries
        streams.addListener(new Starts(active.get(_)))
      }
    case _ => ()
  }

  /** Knows no session: it is as long with its session's queries as that is. */
  private final class Starts(find: UUID => StreamExecution) extends StreamingQueryListener {

    /**
     * Spark calls this on the query's own thread, when the query has its copy of the configuration,
     * and before it fills in what real-time mode is to have, or reads what the checkpoint pins.
     * Spark only logs an exception of this method.
     */
    override def onQueryStarted(event: QueryStartedEvent): Unit =
      Option(find(event.id)).foreach { query =>
        val conf = SparkVersion.sessionOf(query).sessionState.conf
        if (conf.contains(Key)) conf.setConf(SQLConf.STATE_STORE_PROVIDER_CLASS, of(conf))
        partitions(conf).filter(_ => Backends.isOurs(of(conf)))
          .foreach(SparkVersion.askPartitions(conf, _))
        SparkVersion.keepJoinFormat(query)
        if (temporary.remove(query.resolvedCheckpointRoot)) {
          conf.unsetConf(Storage)
          logWarning(
            "the state of a query is in its temporary checkpoint, which Spark deletes when it " +
              s"ends: key=$Storage, checkpoint=${query.resolvedCheckpointRoot}. To fix: set " +
              "checkpointLocation where it is to be kept")
        }
      }

    override def onQueryProgress(event: QueryProgressEvent): Unit = ()

    override def onQueryTerminated(event: QueryTerminatedEvent): Unit = ()
  }
}
