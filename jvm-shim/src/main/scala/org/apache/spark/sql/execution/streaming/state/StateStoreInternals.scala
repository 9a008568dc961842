package org.apache.spark.sql.execution.streaming.state

import java.lang.{Boolean => JBoolean}
import java.nio.MappedByteBuffer
import java.util.{Collections, UUID, WeakHashMap}
import java.util.concurrent.TimeoutException

import scala.jdk.CollectionConverters._
import scala.util.control.NonFatal

import com.codahale.metrics.MetricRegistry
import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.Path

import org.apache.spark.{QueryContext, SparkConf, SparkContext, SparkEnv, SparkException}
import org.apache.spark.{SparkThrowableHelper, TaskContext}
import org.apache.spark.api.python.PythonUtils
import org.apache.spark.deploy.SparkHadoopUtil
import org.apache.spark.metrics.source.Source
import org.apache.spark.rpc.{IsolatedThreadSafeRpcEndpoint, RpcCallContext, RpcEnv}
import org.apache.spark.scheduler.{SparkListener, SparkListenerApplicationEnd}
import org.apache.spark.sql
import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.catalyst.plans.logical.{Deduplicate, GlobalLimit, LogicalPlan}
import org.apache.spark.sql.classic.SparkSession
import org.apache.spark.sql.errors.QueryExecutionErrors
import org.apache.spark.sql.execution.datasources.v2.state.metadata.StateMetadataPartitionReader
import org.apache.spark.sql.execution.streaming.runtime.{
  StreamExecution, StreamingCheckpointConstants}
import org.apache.spark.sql.internal.{SessionState, SharedState, SQLConf, SQLConfEntries}
import org.apache.spark.sql.streaming.{GroupStateTimeout, StreamingQuery, TimeMode, Trigger}
import org.apache.spark.storage.StorageUtils
import org.apache.spark.util.{NextIterator, RpcUtils, SerializableConfiguration, Utils}

/** The few members of Spark that only its own packages can see, and nothing else. */
object StateStoreInternals {

  /** The Hadoop configuration of this JVM's Spark configuration, as a session begins with it. */
  def hadoopConfiguration(): Configuration = SparkHadoopUtil.newConfiguration(new SparkConf())

  /** Run ID of the query whose task uses `hadoopConf`. */
  def runId(hadoopConf: Configuration): UUID =
    UUID.fromString(hadoopConf.get(StreamExecution.RUN_ID_KEY))

  /** Whether this Spark has a condition. */
  def isCondition(name: String): Boolean = SparkThrowableHelper.isValidErrorClass(name)

  /**
   * An error of one of Spark's conditions. Its text is Spark's, and then the cause's.
   *
   * @param values parameters of the condition by their names; others are left out
   */
  def error(condition: String, values: Map[String, String], cause: Throwable): SparkException = {
    val wanted = SparkThrowableHelper.getMessageParameters(condition)
    val parameters = wanted.map(name => name -> values(name)).toMap
    val text = SparkThrowableHelper.getMessage(condition, parameters)
    new SparkException(
      s"$text ${cause.getMessage}", cause, Some(condition), parameters, Array.empty[QueryContext])
  }

  /** Spark's error for a version below 0. */
  def unexpectedStateStoreVersion(version: Long): Throwable =
    QueryExecutionErrors.unexpectedStateStoreVersion(version)

  /** Local directories Spark may fill on this machine, in Spark's order; never empty. */
  def localDirectories(conf: SparkConf): Seq[String] =
    Utils.getConfiguredLocalDirs(conf).toSeq

  /** Gives up the memory, and a deleted file's space; nothing may read the bytes any more. */
  def unmap(mapped: MappedByteBuffer): Unit = StorageUtils.dispose(mapped)

  /** File name of the py4j archive that comes with Spark. */
  def py4jArchive: String = PythonUtils.PY4J_ZIP_NAME

  /** Join entries of a Python path, leaving out empty ones. */
  def mergePythonPaths(paths: Seq[String]): String = PythonUtils.mergePythonPaths(paths: _*)

  /** Configuration of the running Spark application, or an empty one outside of any. */
  def sparkConf: SparkConf = Option(SparkEnv.get).fold(new SparkConf(false))(_.conf)

  /**
   * Run `action` when the Spark application ends whose driver is in this JVM. Does nothing in an
   * executor's JVM, which ends with its application.
   */
  def onApplicationEnd(action: () => Unit): Unit =
    SparkContext.getActive.foreach(_.addSparkListener(new SparkListener {
      override def onApplicationEnd(end: SparkListenerApplicationEnd): Unit = action()
    }))

  /** Adds a source to the metrics system of the running application. */
  def registerMetrics(name: String, metrics: MetricRegistry): Unit =
    SparkEnv.get.metricsSystem.registerSource(new Source {
      override val sourceName: String = name
      override val metricRegistry: MetricRegistry = metrics
    })

  /** Whether the driver of the Spark application is in this JVM. */
  def isDriver(env: SparkEnv): Boolean = env.executorId == SparkContext.DRIVER_IDENTIFIER

  /** Whether driver and executor are one JVM. */
  def isLocal(env: SparkEnv): Boolean = Utils.isLocalMaster(env.conf)

  /**
   * On the driver: let every JVM of the application ask a question under a name that is not taken.
   * Questions are answered one after the other, on a thread of their own; an answer that raises is
   * raised where it was asked. Bytes, because no class of ours can be sent (Spark's own loader
   * reads messages), and because Spark logs texts that come too late.
   */
  def answerQuestions(env: SparkEnv, name: String)(answer: String => Array[Byte]): Unit = {
    env.rpcEnv.setupEndpoint(name, new IsolatedThreadSafeRpcEndpoint {
      override val rpcEnv: RpcEnv = env.rpcEnv

      override def receiveAndReply(context: RpcCallContext): PartialFunction[Any, Unit] = {
        case question: String =>
          try context.reply(answer(question))
          catch { case NonFatal(e) => context.sendFailure(new SparkException(e.getMessage)) }
      }
    })
    ()
  }

  /**
   * Ask the driver a question.
   *
   * @return the answer, or None when nobody on the driver answers under that name
   * @throws org.apache.spark.SparkException the driver raised, cannot be reached, or does not
   *         answer in time
   */
  def askDriver(env: SparkEnv, name: String, question: String): Option[Array[Byte]] =
    try {
      val driver = RpcUtils.makeDriverRef(name, env.conf, env.rpcEnv)
      Some(driver.askSync[Array[Byte]](question))
    } catch {
      case e: SparkException if isUnknownName(e) => None
      case e: TimeoutException =>
        throw new SparkException(s"the driver does not answer: ${e.getMessage}", e)
    }

  /** By the name of the exception's class, which is hidden from everybody else. */
  private def isUnknownName(e: Throwable): Boolean =
    Iterator.iterate(e)(_.getCause).takeWhile(_ != null)
      .exists(_.getClass.getSimpleName == "RpcEndpointNotFoundException")

  /** On the driver: let `activeRuns` and `statefulQueries` look at the queries of a session. */
  def noteSession(session: sql.SparkSession): Unit = session match {
    case classic: SparkSession =>
      sharedStates.add(classic.sharedState)
      ()
    case _ => ()
  }

  /** On the driver: run IDs of the active queries of all sessions noted. */
  def activeRuns: Set[String] = activeQueries.map(_.runId.toString)

  /** On the driver: the active query of a run; None elsewhere, and where none is known. */
  def activeQuery(run: String): Option[StreamingQuery] = activeQueries.find(_.runId.toString == run)

  /** On the driver: the active stateful queries of those sessions over some providers' classes. */
  def statefulQueries(isWanted: String => Boolean): Set[StatefulQuery] = for {
    query <- activeQueries
    session = SparkVersion.sessionOf(query).sessionState
    if isWanted(session.conf.stateStoreProviderClass)
    if isStateful(query.analyzedPlan)
  } yield new StatefulQuery(
    query.runId.toString,
    new Path(query.resolvedCheckpointRoot, StreamingCheckpointConstants.DIR_NAME_STATE).toString,
    session)

  /** Whether Spark keeps state of a plan; its own rule leaves limits out, and most duplicates. */
  def isStateful(plan: LogicalPlan): Boolean = plan.exists {
    case node @ (_: Deduplicate | _: GlobalLimit) => node.isStreaming
    case node => SparkVersion.isStateful(node)
  }

  private def activeQueries: Set[StreamExecution] =
    sharedStates.synchronized(sharedStates.asScala.toSet)
      .flatMap(_.activeStreamingQueries.values.asScala)

  /** On the driver: the query that is planned on this thread, and a session with its settings. */
  def plannedQuery: Option[(StreamExecution, SparkSession)] = for {
    session <- SparkSession.getActiveSession
    id <- Option(session.sparkContext.getLocalProperty(StreamExecution.QUERY_ID_KEY))
    query <- Option(session.sharedState.activeStreamingQueries.get(UUID.fromString(id)))
  } yield (query, session)

  /** Whether the task of this thread, if it is one, was started by a query. */
  def isTaskOfQuery: Boolean =
    Option(TaskContext.get()).forall(_.getLocalProperty(StreamExecution.QUERY_ID_KEY) != null)

  /** Whether a query is to end when it has read its input, and its operators ask for ever more. */
  def isEndless(query: StreamExecution, session: SparkSession): Boolean =
    query.trigger == Trigger.AvailableNow() &&
      session.sessionState.conf.streamingNoDataMicroBatchesEnabled &&
      query.analyzedPlan.exists(_.productIterator.exists(ProcessingTime))

  private val ProcessingTime =
    Set[Any](TimeMode.ProcessingTime(), GroupStateTimeout.ProcessingTimeTimeout())

  /**
   * On the driver, where a query is planned on this thread whose session asks for another number of
   * state partitions than its checkpoint pins, and by no option of this package: the checkpoint
   * directory, the number pinned, and the one asked for. Once for each run.
   */
  def partitionsAskedInVain: Option[(String, Int, Int)] = for {
    (query, session) <- plannedQuery
    conf = session.sessionState.conf
    pinned <- SparkVersion.pinnedPartitions(conf)
    asked = conf.defaultNumShufflePartitions
    if asked != pinned && conf.contains(SQLConf.SHUFFLE_PARTITIONS.key)
    if QueryProviders.partitions(conf).isEmpty && toldRuns.add(query)
  } yield (query.resolvedCheckpointRoot, pinned, asked)

  private val toldRuns =
    Collections.synchronizedSet(Collections.newSetFromMap(new WeakHashMap[AnyRef, JBoolean]))

  // Sessions of one application mostly share one.
  private val sharedStates =
    Collections.synchronizedSet(Collections.newSetFromMap(new WeakHashMap[SharedState, JBoolean]))

  /**
   * The column families of a state schema file.
   *
   * @throws java.io.IOException there is no such file, or it cannot be read
   */
  def readStateSchemas(file: Path, hadoopConf: Configuration): Seq[StateStoreColFamilySchema] = {
    val in = file.getFileSystem(hadoopConf).open(file)
    try StateSchemaCompatibilityChecker.readSchemaFile(in)
    finally in.close()
  }

  /**
   * The stores of a checkpoint's operators, as Spark's metadata of operators has them that is valid
   * for a batch.
   */
  def operatorStores(
      checkpoint: Path, batch: Long, hadoopConf: Configuration): Seq[OperatorStore] = {
    val conf = new SerializableConfiguration(hadoopConf)
    new StateMetadataPartitionReader(checkpoint.toString, conf, batch)
      .allOperatorStateMetadata.toSeq.flatMap {
        case v1: OperatorStateMetadataV1 =>
          val of = v1.operatorInfo
          v1.stateStoreInfo.toSeq.map { store =>
            OperatorStore(
              of.operatorId, of.operatorName, store.storeName, store.numPartitions, "", Nil)
          }
        case v2: OperatorStateMetadataV2 =>
          val of = v2.operatorInfo
          v2.stateStoreInfo.toSeq.map { store =>
            OperatorStore(
              of.operatorId,
              of.operatorName,
              store.storeName,
              store.numPartitions,
              v2.operatorPropertiesJson,
              store.stateSchemaFilePaths)
          }
        case other =>
          throw new IllegalArgumentException(
            s"[newer-format] metadata of an operator is of a newer version: path=$checkpoint, " +
              s"version=${other.version}. To fix: use the Spark that wrote it")
      }
  }

  /** Every configuration key that Spark SQL knows, alternative spellings included. */
  lazy val sqlConfKeys: Set[String] =
    SQLConfEntries.all.flatMap(entry => entry.key :: entry.alternatives).toSet
}

/**
 * A store of a stateful operator.
 *
 * @param properties  JSON of the operator's own, which names its state variables; empty for none
 * @param schemaFiles of its column families, oldest first
 */
final case class OperatorStore(
    operator: Long,
    operatorName: String,
    store: String,
    numPartitions: Int,
    properties: String,
    schemaFiles: Seq[String])

/**
 * An active query with state; `stateDirectory` is the `state` directory of its checkpoint. The rest
 * are copies of all that is configured, made when they are asked for.
 */
final class StatefulQuery(val run: String, val stateDirectory: String, session: SessionState) {
  def providerClass: String = session.conf.stateStoreProviderClass

  def newStoreConf(): StateStoreConf = new StateStoreConf(session.conf)

  def newHadoopConf(): Configuration = {
    val hadoopConf = session.newHadoopConf()
    hadoopConf.set(StreamExecution.RUN_ID_KEY, run)
    hadoopConf
  }
}

/** Spark's iterator over the changes of a version range, open to implementations outside Spark. */
abstract class ChangeDataReader
    extends NextIterator[(RecordType.Value, UnsafeRow, UnsafeRow, Long)]
