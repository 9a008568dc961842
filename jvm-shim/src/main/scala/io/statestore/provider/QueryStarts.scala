package io.statestore.provider

import java.lang.{Boolean => JBoolean}
import java.util.{Collections, WeakHashMap}

import io.statestore.{Backends, Commands, PartitionsAskedException, Resources, ShimOptions}

import org.apache.spark.internal.Logging
import org.apache.spark.sql.{SparkSession, SparkSessionExtensions, SparkSessionExtensionsProvider}
import org.apache.spark.sql.catalyst.streaming.WriteToStream
import org.apache.spark.sql.classic.{SparkSession => ClassicSession}
import org.apache.spark.sql.execution.streaming.runtime.StreamExecution
import org.apache.spark.sql.execution.streaming.state.{
  QueryProviders, SparkVersion, StateStoreConf, StateStoreInternals}
import org.apache.spark.sql.internal.SQLConf

/**
 * Notices the start of a streaming query on the driver, also where no batch of it is planned for
 * long, and refuses options that no store of it would take, a provider of this package under a key
 * that is none, another number of state partitions than the one asked for, a checkpoint whose state
 * schemas are elsewhere, and a file sink that does not fit it. What Spark pins in the offset log is
 * not among the options yet: those are what somebody set. Spark finds this class by its name in the
 * jar's `META-INF/services`.
 */
final class QueryStarts extends SparkSessionExtensionsProvider {
  override def apply(extensions: SparkSessionExtensions): Unit =
    extensions.injectCheckRule { session =>
      {
        case write: WriteToStream =>
          val pinned = session match {
            case classic: ClassicSession =>
              new QueryLogs(classic, write.resolvedCheckpointLocation).provider
            case _ => None
          }
          val provider = pinned.getOrElse(QueryProviders.of(SQLConf.get))
          if (Backends.isOurs(provider)) {
            Resources.checkSpark()
            val options = new StateStoreConf(SQLConf.get).sqlConfs
            val parsed = ShimOptions.parse(options)
            OffHeap.check(parsed)
            QueryStarts.requirePartitions(session, write, parsed.partitions)
            QueryStarts.requireSchemas(session, write)
            if (provider == Backends.Providers("rocksdb")) ShimOptions.warnOfIgnored(options)
            FileSinks.check(session, write)
          } else {
            // A misspelled key of the provider leaves the query to Spark's own.
            SQLConf.get.getAllConfs.foreach {
              case (key, value) => if (Backends.isOurs(value)) ShimOptions.checkKnown(key)
            }
          }
          QueryProviders.watch(session, write)
          StateStoreInternals.noteSession(session)
          Leases.watch()
        case _ => ()
      }
    }
}

private[statestore] object QueryStarts extends Logging {
  private val begun =
    Collections.synchronizedSet(Collections.newSetFromMap(new WeakHashMap[AnyRef, JBoolean]))

  /**
   * On the driver, where a batch is planned on this thread.
   *
   * @throws io.statestore.EngineReportedException the driver's lease of the run was refused
   */
  def planned(): Unit =
    StateStoreInternals.plannedQuery.foreach { case (query, session) =>
      // Spark hides what is raised while it describes the plan, and asks again to run it.
      Leases.requireNotRefused(query.runId.toString)
      if (!begun.contains(query)) begin(query, session)
    }

  /** When the first batch of a run is planned. */
  private def begin(query: StreamExecution, session: ClassicSession): Unit = {
    FileSinks.complete(query, session)
    SparkVersion.planned(query)
    begun.add(query)
    if (StateStoreInternals.isEndless(query, session)) {
      logWarning(
        "a query with processing time does not end by itself, though its trigger is " +
          "availableNow: Spark runs batches without input for ever: " +
          s"checkpoint=${query.resolvedCheckpointRoot}. To fix: set " +
          "spark.sql.streaming.noDataMicroBatches.enabled to false")
    }
  }

  /**
   * Refuses a query that asks for another number of state partitions than its checkpoint has.
   * Within a batch that the query ends, an edit's too, nobody can rescale: it goes on as it is.
   *
   * @throws io.statestore.PartitionsAskedException the number is to be changed first
   */
  private def requirePartitions(session: SparkSession, write: WriteToStream, asked: Int): Unit =
    session match {
      case classic: ClassicSession if asked > 0 =>
        val logs = new QueryLogs(classic, write.resolvedCheckpointLocation)
        logs.numPartitions.filter(_ != asked && logs.hasOurState).foreach { found =>
          val fix = s"run `${Commands.rescale(logs.root, asked)}`, or " +
            "start the query within statestore.run, which rescales it first, or leave out the " +
            "option partitions"
          if (logs.isPlanned(logs.next) && !logs.isRescale(logs.next)) {
            logWarning(
              "the query ends a batch that was begun, and goes on with the number of state " +
                s"partitions that it has: state_partitions=$found asked=$asked " +
                s"checkpoint=${logs.root}. To fix: stop it between two batches, and $fix")
          } else throw new PartitionsAskedException(classic, logs.root, found, asked, fix)
        }
      case _ => ()
    }

  /**
   * Refuses a query whose checkpoint has its state schemas under a path that is not there. Spark
   * takes that for a query without any, and writes the schema of its program in their place.
   */
  private def requireSchemas(session: SparkSession, write: WriteToStream): Unit = session match {
    case classic: ClassicSession =>
      val logs = new QueryLogs(classic, write.resolvedCheckpointLocation)
      logs.missingSchema.foreach { file =>
        throw new IllegalArgumentException(
          "[file-not-found] a schema of the state is not where the checkpoint names it, as after " +
            "the checkpoint was moved, or restored under another path than the query's: " +
            s"file=$file checkpoint=${logs.root}. To fix: let the checkpoint be where that file " +
            s"is named, or run `${Commands.restore(logs.root)}`, with NEW as the query names it, " +
            "and start the query from there")
      }
    case _ => ()
  }
}
