package io.statestore

import java.util

import io.statestore.catalog.{
  Addresses, CheckpointFiles, MetadataTables, NotThereException, RowsPlace}

import org.apache.spark.sql.classic.SparkSession
import org.apache.spark.sql.connector.catalog.{
  Column, Identifier, Table, TableCatalog, TableChange, TableWritePrivilege}
import org.apache.spark.sql.connector.expressions.Transform
import org.apache.spark.sql.util.CaseInsensitiveStringMap

/**
 * State as tables of Spark SQL: a checkpoint is a namespace, by its path, and rows are a table of
 * it, by their address. What Spark's state reader reads is read by it, of any provider.
 *
 * {{{
 * spark.sql.catalog.state=io.statestore.StateCatalog
 * SELECT * FROM state.`/data/checkpoint`.clicks VERSION AS OF 12
 * SELECT * FROM state.`/data/checkpoint`.metadata.versions
 * }}}
 *
 * Nothing is kept between two calls. Whatever would change state is refused.
 */
final class StateCatalog extends TableCatalog {
  import StateCatalog._

  private[this] var givenName: String = _

  override def initialize(name: String, options: CaseInsensitiveStringMap): Unit = givenName = name

  override def name: String = givenName

  override def listTables(namespace: Array[String]): Array[Identifier] = {
    val names = namespace match {
      case Array(path) =>
        val files = filesOf(path)
        files.addressesAt(files.newestVersion).tables
      case Array(path, Metadata) =>
        filesOf(path)
        MetadataTables.names
      case _ => throw noCheckpoint(namespace)
    }
    names.map(Identifier.of(namespace, _)).toArray
  }

  override def tableExists(table: Identifier): Boolean =
    try {
      loadTable(table)
      true
    } catch {
      case _: NotThereException => false
    }

  override def loadTable(table: Identifier): Table = table.namespace match {
    case Array(path) => load(path, table.name, None)
    case Array(path, Metadata) =>
      MetadataTables.load(filesOf(path), table.name).getOrElse {
        throw noTable(table.name, MetadataTables.names)
      }
    case other => throw noCheckpoint(other)
  }

  override def loadTable(table: Identifier, version: String): Table = table.namespace match {
    case Array(path) =>
      val number = version.toLongOption.getOrElse {
        throw refused(
          s"[invalid-argument] this is no state version: version=$version. To fix: give a " +
            "number; batch b makes version b + 1")
      }
      load(path, table.name, Some(number))
    case Array(_, Metadata) =>
      throw refused(
        s"[invalid-argument] metadata has no versions: table=${table.name}. To fix: leave " +
          "VERSION AS OF out")
    case other => throw noCheckpoint(other)
  }

  override def loadTable(table: Identifier, timestamp: Long): Table =
    throw refused(
      s"[invalid-argument] state is read at a version, not at a time: table=${table.name}. " +
        s"To fix: look for the version in $givenName.`PATH`.$Metadata.versions, which has when " +
        "each was committed; then use VERSION AS OF")

  override def loadTable(
      table: Identifier, privileges: util.Set[TableWritePrivilege]): Table = throw readOnly(table)

  override def createTable(
      table: Identifier,
      columns: Array[Column],
      partitions: Array[Transform],
      properties: util.Map[String, String]): Table = throw readOnly(table)

  override def alterTable(table: Identifier, changes: TableChange*): Table = throw readOnly(table)

  override def dropTable(table: Identifier): Boolean = throw readOnly(table)

  override def renameTable(table: Identifier, newTable: Identifier): Unit = throw readOnly(table)

  private def load(path: String, name: String, version: Option[Long]): Table = {
    val files = filesOf(path)
    find(files, name, version) match {
      case Some((Seq(RowsPlace(operator, _, _, Some(options))), found)) =>
        files.stateReader(operator, options, found)
      case Some((Seq(_), _)) =>
        throw new NotThereException(
          "[invalid-argument] Spark's state reader does not show what Spark keeps beside state " +
            s"variables: table=$name. To fix: use `statestore sql`, which does")
      case Some((several, found)) =>
        val known = several.map(files.addressesAt(found).of)
        throw new NotThereException(
          "[invalid-argument] rows are in several places, and it is not said which are meant: " +
            s"table=$name, known=${known.mkString(", ")}. To fix: name one of these")
      case None =>
        throw noTable(name, files.addressesAt(version.getOrElse(files.newestVersion)).tables)
    }
  }

  /**
   * The places of a name, and the version that is meant: the one given, else that of
   * `NAME@VERSION`, else the newest. A name means what it means to `statestore sql`.
   */
  private def find(
      files: CheckpointFiles,
      name: String,
      version: Option[Long]): Option[(Seq[RowsPlace], Long)] = {
    val itself = name -> version.getOrElse(files.newestVersion)
    val meant = Seq(itself) ++ (name match {
      case Versioned(base, number) if version.isEmpty => Some(base -> number.toLong)
      case _ => None
    })
    val found = for {
      ways <- Iterator[(Addresses, String) => Seq[RowsPlace]](_.find(_), _.findFolded(_))
      (name, version) <- meant
      places = ways(files.addressesAt(version), name)
      if places.nonEmpty
    } yield (places, version)
    found.nextOption()
  }

  private def noCheckpoint(namespace: Array[String]): Throwable =
    new NotThereException(
      "[invalid-argument] the name of a table here has the path of a checkpoint: " +
        s"given=${(givenName +: namespace).mkString(".")}. To fix: write " +
        s"$givenName.`PATH`.TABLE, or $givenName.`PATH`.$Metadata.TABLE")

  // Not of the others' type, which Spark wraps for ALTER TABLE into one that PySpark does not know.
  private def readOnly(table: Identifier): Throwable =
    new UnsupportedOperationException(
      s"[invalid-argument] state is read here, and not changed: table=${table.name}. To fix: " +
        "use `statestore edit`, `transform` or `forget`, which show their plan")
}

private object StateCatalog {

  /** The namespace, below that of a checkpoint, of tables about it. */
  val Metadata = "metadata"

  private val Versioned = "(?s)(.+)@([0-9]{1,18})".r

  private def filesOf(path: String): CheckpointFiles =
    new CheckpointFiles(path, SparkSession.active.sessionState.newHadoopConf())

  private def noTable(name: String, known: Seq[String]): Throwable =
    new NotThereException(
      s"[invalid-argument] there is no table of that name: table=$name, " +
        s"known=${known.mkString(", ")}. To fix: use one of these, in backticks; of an older " +
        "version with VERSION AS OF")

  private def refused(text: String): Throwable = new IllegalArgumentException(text)
}
