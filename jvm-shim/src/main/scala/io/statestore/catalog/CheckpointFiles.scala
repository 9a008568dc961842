package io.statestore.catalog

import java.io.FileNotFoundException
import java.nio.charset.StandardCharsets.UTF_8

import scala.collection.mutable
import scala.jdk.CollectionConverters._

import io.statestore.Json
import io.statestore.engine.HadoopFiles
import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.{FileStatus, Path}

import org.apache.spark.QueryContext
import org.apache.spark.sql.AnalysisException
import org.apache.spark.sql.connector.catalog.Table
import org.apache.spark.sql.execution.datasources.v2.state.StateDataSource
import org.apache.spark.sql.execution.streaming.state.{OperatorStore, StateStoreInternals}
import org.apache.spark.sql.util.CaseInsensitiveStringMap

/**
 * A table that there is not. Spark's `tableExists` is false where the condition is this one; it
 * keeps the text, while of `NoSuchTableException` it makes one of its own.
 */
final class NotThereException(text: String)
    extends AnalysisException(
      text,
      None,
      None,
      None,
      Some("TABLE_OR_VIEW_NOT_FOUND"),
      Map.empty[String, String],
      Array.empty[QueryContext])

/**
 * What a checkpoint's files say of its versions and operators, in Spark's own formats.
 *
 * @throws NotThereException there is no checkpoint, or no batch is committed
 * @throws java.lang.IllegalArgumentException this is no path, or its file system cannot be asked
 */
final class CheckpointFiles(location: String, hadoopConf: Configuration) {
  val path: Path =
    try new Path(location)
    catch {
      case e: IllegalArgumentException =>
        throw new IllegalArgumentException(
          s"[invalid-argument] this is no path of a checkpoint: path='$location', " +
            s"reason=${e.getMessage}. To fix: give the query's checkpointLocation, in backticks")
    }

  private[this] val fs = asked(path.getFileSystem(hadoopConf))
  private[this] val addresses = mutable.HashMap.empty[Long, Addresses]

  /** Entries of the commit log by their batch, in order; never empty. */
  val commits: Seq[(Long, FileStatus)] = {
    def list(name: String): Seq[FileStatus] =
      asked {
        try fs.listStatus(new Path(path, name)).toSeq
        catch {
          case _: FileNotFoundException => Nil
        }
      }

    val found = list("commits")
      .flatMap(file => file.getPath.getName.toLongOption.map(_ -> file)).sortBy(_._1)
    if (found.isEmpty) {
      throw new NotThereException(
        if (list("offsets").isEmpty) {
          s"[checkpoint-not-found] there is no checkpoint of a streaming query: path=$path. " +
            "To fix: give the query's checkpointLocation, in backticks; restore a savepoint, or " +
            "read it by `statestore sql`"
        } else {
          s"[version-not-found] no batch of the query is committed yet: path=$path. To fix: wait " +
            "until the query has ended its first batch"
        })
    }
    found
  }

  /** Of the newest committed batch. */
  val newestVersion: Long = commits.last._1 + 1

  /** The addresses of rows at a version. */
  def addressesAt(version: Long): Addresses = addresses.getOrElseUpdate(
    version, {
      if (version < 1 || version > newestVersion) {
        throw new NotThereException(
          s"[version-not-found] the version is not committed: path=$path, version=$version, " +
            s"newest_version=$newestVersion. To fix: ask for a version from 1 to the newest; " +
            "batch b makes version b + 1")
      }
      new Addresses(operatorsAt(version))
    })

  /** Stores of the operators at a version, in order. */
  def storesAt(version: Long): Seq[OperatorStore] =
    StateStoreInternals.operatorStores(path, version - 1, hadoopConf)

  private def operatorsAt(version: Long): Seq[Operator] = {
    val stores = storesAt(version)
    stores.map(_.operator).distinct.map { id =>
      val own = stores.filter(_.operator == id)
      val families = own.flatMap(_.schemaFiles.lastOption).flatMap(familiesIn)
      Operator(id, own.map(_.store), variablesOf(own.head), families)
    }
  }

  private def variablesOf(store: OperatorStore): Seq[StateVariable] =
    if (store.properties.isEmpty) Nil
    else {
      Json.readObject(store.properties).path("stateVariables").elements.asScala.map { variable =>
        val isTimers = variable.path("stateVariableType").asText == "TimerState"
        StateVariable(variable.path("stateName").asText, isTimers)
      }.toSeq
    }

  private def familiesIn(schemaFile: String): Seq[String] =
    StateStoreInternals.readStateSchemas(new Path(schemaFile), hadoopConf).map(_.colFamilyName)

  /** Rows of an operator at a version, as Spark's state reader has them for some options. */
  def stateReader(operator: Long, options: Map[String, String], version: Long): Table = {
    val whole = fs.makeQualified(path)
    val readers = new Path(whole.toUri.toString)  // as the reader takes a location
    if (readers != whole) {
      throw new IllegalArgumentException(
        "[invalid-argument] Spark's state reader does not read this path, since it escapes some " +
          s"characters of it twice: path=$path, reader_looks_at=$readers. To fix: use " +
          "`statestore sql`, which reads it, or copy the checkpoint to a path of letters, " +
          "digits, `-`, `_` and `.`")
    }
    val place = Map(
      "path" -> path.toString,
      "batchId" -> (version - 1).toString,
      "operatorId" -> operator.toString)
    val asked = new CaseInsensitiveStringMap((options ++ place).asJava)
    val source = new StateDataSource
    source.getTable(source.inferSchema(asked), Array.empty, asked.asCaseSensitiveMap)
  }

  private def asked[A](look: => A): A =
    try look
    catch {
      // A file system whose jar lacks another one is a LinkageError.
      case e @ (_: Exception | _: LinkageError) =>
        val kind = HadoopFiles.kindOf(e)
        val fix =
          if (kind == "unsupported-scheme") "add the jar of its file system to spark.jars, or "
          else "see that the file system can be reached with this session's configuration, or "
        throw new IllegalArgumentException(
          s"[$kind] the file system of the path cannot be asked: path=$path, " +
            s"reason='${HadoopFiles.reasonOf(e)}'. To fix: ${fix}correct the path",
          e)
    }

  /** Lines of a file of the checkpoint; none where there is no such file. */
  def linesOf(name: String): Seq[String] =
    try {
      val in = fs.open(new Path(path, name))
      try new String(in.readAllBytes(), UTF_8).linesIterator.toSeq
      finally in.close()
    } catch {
      case _: FileNotFoundException => Nil
    }

  /** Paths below the checkpoint's state, and sizes, of all of its files; none without state. */
  def stateFiles: Iterator[(Seq[String], Long)] = {
    val root = fs.makeQualified(new Path(path, "state"))
    val found =
      try {
        val listed = fs.listFiles(root, true)
        Iterator.unfold(())(_ => Option.when(listed.hasNext)(listed.next() -> ()))
      } catch { case _: FileNotFoundException => Iterator.empty }
    found.map { file =>
      root.toUri.relativize(file.getPath.toUri).getPath.split('/').toSeq -> file.getLen
    }
  }
}
