package io.statestore.engine

import java.nio.charset.StandardCharsets.UTF_8
import java.util.concurrent.ConcurrentHashMap

import io.statestore.Commands
import org.slf4j.LoggerFactory

import org.apache.spark.{SparkEnv, SparkException}
import org.apache.spark.sql.SparkSession
import org.apache.spark.sql.execution.streaming.state.StateStoreInternals

/** Which query runs are active: the driver knows, executors ask it. */
object QueryRuns {
  private val log = LoggerFactory.getLogger(getClass.getName.stripSuffix("$"))
  private val EndpointName = "statestore-query-runs"

  /** Asked for, it is among the active runs when there is one. */
  private val AnyRun = "*"
  private val MostKnown = 1000

  /** Runs that were active when it was asked. */
  private val known = ConcurrentHashMap.newKeySet[String]

  // Guarded by this.
  private[this] var application: SparkEnv = _

  /**
   * On the driver, lets executors ask from now on for runs of this thread's session, and warns
   * where the session asks for a number of state partitions in vain. False on executors.
   */
  def offer(): Boolean = {
    val env = SparkEnv.get
    val isDriver = env != null && StateStoreInternals.isDriver(env)
    if (isDriver) {
      SparkSession.getActiveSession.foreach(StateStoreInternals.noteSession)
      StateStoreInternals.partitionsAskedInVain.foreach { case (checkpoint, pinned, asked) =>
        log.warn(
          "spark.sql.shuffle.partitions counts for shuffles without state, and does not change " +
            s"the number of state partitions of a checkpoint: checkpoint=$checkpoint " +
            s"state_partitions=$pinned asked=$asked. To fix: where state partitions are meant, " +
            s"stop the query and run `${Commands.rescale(checkpoint, asked)}`; where shuffles " +
            "are, nothing is to be done")
      }
      synchronized {
        if (application ne env) {
          application = env
          StateStoreInternals.answerQuestions(env, EndpointName) { runs =>
            activeAmong(runs.split(' ').toSet).mkString(" ").getBytes(UTF_8)
          }
        }
      }
    }
    isDriver
  }

  /** Those of some runs that are active; all of them where the driver does not answer. */
  def active(runs: Set[String]): Set[String] =
    try ask(runs).getOrElse(runs)
    catch {
      case e: SparkException =>
        log.debug("the driver does not say which runs are active", e)
        runs
    }

  /**
   * Whether a run is active; a driver without any query says no.
   *
   * @throws org.apache.spark.SparkException the driver cannot be reached
   */
  def isActive(run: String): Boolean = ask(Set(run)).exists(_.nonEmpty)

  /**
   * Whether a run may be one of a query: no where the driver has active queries, and this is not
   * the run of one, or where it has planned no query over this package. The state data source has
   * runs of its own. Within `foreachBatch` nothing else tells it apart, since it reads in the
   * query's own session. Where no query is active, a task of one may outlive it; a task that reads
   * in the session that `foreachBatch` has left behind has no query.
   */
  def mayBeOfQuery(run: String): Boolean = known.contains(run) || {
    val found =
      try ask(Set(run, AnyRun))
      catch {
        case e: SparkException =>
          log.debug("the driver does not say which runs are active", e)
          Some(Set.empty[String])
      }
    val isActive = found.exists(_.contains(run))
    if (isActive) {
      if (known.size >= MostKnown) known.clear()
      known.add(run)
    }
    isActive || (StateStoreInternals.isTaskOfQuery && found.exists(!_.contains(AnyRun)))
  }

  private def activeAmong(runs: Set[String]): Set[String] = {
    val active = StateStoreInternals.activeRuns
    runs.filter(run => active(run) || (run == AnyRun && active.nonEmpty))
  }

  /** None where no query over this package was planned: `offer` is before its first task. */
  private def ask(runs: Set[String]): Option[Set[String]] = SparkEnv.get match {
    case null => Some(Set.empty)
    case env if StateStoreInternals.isDriver(env) => Some(activeAmong(runs))
    case env =>
      StateStoreInternals.askDriver(env, EndpointName, runs.mkString(" "))
        .map(bytes => new String(bytes, UTF_8).split(' ').toSet & runs)
  }
}
