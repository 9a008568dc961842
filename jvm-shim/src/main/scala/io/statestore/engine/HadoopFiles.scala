package io.statestore.engine

import java.io.{EOFException, File, FileNotFoundException, IOException, InputStream, OutputStream}
import java.nio.channels.{Channels, FileChannel}
import java.nio.file.{Files, StandardOpenOption}
import java.util.LinkedHashMap
import java.util.Map.Entry
import java.util.concurrent.ConcurrentHashMap

import com.fasterxml.jackson.databind.node.{ArrayNode, ObjectNode}
import io.statestore.{Json, LocalDiskException}
import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.{FileAlreadyExistsException, FileStatus, FileSystem, FSError, Path}
import org.apache.hadoop.fs.{PathIsNotEmptyDirectoryException, UnsupportedFileSystemException}
import org.apache.hadoop.security.AccessControlException

import org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager
import org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager

/**
 * Files of every file system that Hadoop can open, for engines, operations and Python on the
 * driver: what `statestore/io/hadoop.py` asks for. Bytes travel in local files. Durable files are
 * written as Spark writes its own, through its `CheckpointFileManager`. Thread-safe.
 */
final class HadoopFiles {
  import HadoopFiles._

  // In order of use, guarded by this. Of queries that ended some stay: their snapshots go on.
  private[this] val registered =
    new LinkedHashMap[String, Registered](16, 0.75f, true) {
      override def removeEldestEntry(eldest: Entry[String, Registered]): Boolean =
        size > MostConfigurations
    }

  /**
   * Use a Hadoop configuration for a checkpoint: that of the query that has it, or of who reads it
   * where no query runs. Those that were not used for longest are forgotten when there are very
   * many: a store says before each call that its own is to be kept.
   */
  def register(checkpoint: String, configuration: Configuration, isOfQuery: Boolean): Unit =
    synchronized {
      registered.put(checkpoint, new Registered(configuration, isOfQuery))
      ()
    }

  /**
   * Register a configuration again where that of its checkpoint was forgotten; that of a query
   * also where who reads the checkpoint has registered another one since.
   */
  def keepRegistered(checkpoint: String, configuration: Configuration, isOfQuery: Boolean): Unit =
    synchronized {
      val known = registered.get(checkpoint)
      if (known == null || isOfQuery && !known.isOfQuery) {
        register(checkpoint, configuration, isOfQuery)
      }
    }

  /**
   * Answer one request of docs/protocol.md, "Calls of an engine". Never raises.
   *
   * @param request `op`, `checkpoint`, `path`, and what the operation takes
   * @return `ok` or `error`
   */
  def answer(request: ObjectNode): ObjectNode = {
    val reply = Json.obj()
    try {
      val path = new Path(request.get("path").asText)
      val found = synchronized(registered.get(request.path("checkpoint").asText))
      if (found == null) throw new IOException("checkpoint belongs to no query of this JVM")
      perform(request, path, found, reply.putObject("ok"))
    } catch {
      // A file system whose jar lacks another one is a LinkageError. That of the local disk has an
      // Error of its own where the disk is full or fails.
      case e @ (_: Exception | _: LinkageError | _: FSError) =>
        reply.remove("ok")
        reply.putObject("error").put("kind", kindOf(e)).put("reason", reasonOf(e))
    }
    reply
  }

  private def perform(
      request: ObjectNode,
      path: Path,
      of: Registered,
      reply: ObjectNode): Unit = {
    lazy val fileSystem = path.getFileSystem(of.configuration)
    request.get("op").asText match {
      case "publish" =>
        val local = new File(request.get("local_path").asText)
        write(path, request.get("overwrite").asBoolean, of)(Files.copy(local.toPath, _))
      case "read" =>
        read(
          fileSystem,
          path,
          request.get("offset").asLong,
          request.get("length").asLong,
          new File(request.get("local_path").asText),
          request.path("in_place").asBoolean,
          reply)
      case "stat" => describe(fileSystem, path, reply)
      case "delete" => delete(fileSystem, path, isTree = false)
      case "delete_files" =>
        request.get("names").forEach { name =>
          delete(fileSystem, new Path(s"$path/${name.asText}"), isTree = false)
        }
      case "delete_tree" => delete(fileSystem, path, isTree = true)
      case "list" => list(fileSystem, path, reply.putArray("files"), reply.putArray("directories"))
      case "copy" =>
        val size = describe(fileSystem, path, reply)
        val in = fileSystem.open(path)
        try {
          write(new Path(request.get("new_path").asText), overwrite = false, of)(copy(in, _, size))
        } finally in.close()
      case "resolve" => resolve(path, of.configuration, reply)
      case "make_directory" =>
        if (!fileSystem.mkdirs(path)) throw new IOException(s"cannot make a directory: path=$path")
      case other => throw new IllegalArgumentException(s"unknown operation: op=$other")
    }
  }

  /** Makes a file appear with all the bytes that `body` writes. */
  private def write(path: Path, overwrite: Boolean, of: Registered)(
      body: OutputStream => Any): Unit = {
    // The rename decides, but one that is refused would leave the uploaded file behind.
    if (!overwrite && path.getFileSystem(of.configuration).exists(path)) {
      throw new FileAlreadyExistsException(path.toString)
    }
    val out =
      try of.manager(path).createAtomic(path, overwriteIfPossible = overwrite)
      catch { case e: FileNotFoundException => throw new DirectoryGoneException(e) }
    try {
      body(out)
      out.close()
    } catch {
      case e: Throwable =>
        out.cancel()
        throw e
    }
  }

  /** Says where a path really is, whether it exists or not: behind mounts, links and names. */
  private def resolve(path: Path, configuration: Configuration, reply: ObjectNode): Unit = {
    var fileSystem = path.getFileSystem(configuration)
    val asked = fileSystem.makeQualified(path)
    var above = asked
    while (above.getParent != null && !fileSystem.exists(above)) above = above.getParent
    val below = asked.toUri.getPath.substring(above.toUri.getPath.length)
    val found = fileSystem.resolvePath(above)
    fileSystem = found.getFileSystem(configuration)
    val storage = Option(fileSystem.getCanonicalServiceName).getOrElse(fileSystem.getUri.toString)
    reply.put("storage", storage).put("path", s"${found.toUri.getPath}/$below")
    ()
  }

  /**
   * Copies `length` bytes from `offset`, fewer at the end; a negative offset is from the end. In
   * place: to the same offset of a local file that is there, of which all else stays.
   */
  private def read(
      fileSystem: FileSystem,
      path: Path,
      offset: Long,
      length: Long,
      local: File,
      inPlace: Boolean,
      reply: ObjectNode): Unit = {
    val size = describe(fileSystem, path, reply)
    val start = if (offset < 0) math.max(size + offset, 0L) else math.min(offset, size)
    val wanted = math.min(length, size - start)
    val in = fileSystem.open(path)
    try {
      val out =
        if (inPlace) {
          val channel = FileChannel.open(local.toPath, StandardOpenOption.WRITE)
          Channels.newOutputStream(channel.position(start))
        } else Files.newOutputStream(local.toPath)
      try {
        if (wanted > 0) in.seek(start)
        copy(in, out, wanted)
      } finally out.close()
    } finally in.close()
  }

  private def copy(in: InputStream, out: OutputStream, length: Long): Unit = {
    val buffer = new Array[Byte](BufferBytes)
    var left = length
    while (left > 0) {
      val n = in.read(buffer, 0, math.min(left, buffer.length.toLong).toInt)
      if (n < 0) throw new EOFException(s"file ends early: missing_bytes=$left")
      out.write(buffer, 0, n)
      left -= n
    }
  }

  private def describe(fileSystem: FileSystem, path: Path, reply: ObjectNode): Long = {
    val status = fileSystem.getFileStatus(path)
    if (status.isDirectory) throw new FileNotFoundException(s"is a directory: path=$path")
    reply.put("size", status.getLen).put("modified_ms", status.getModificationTime)
    status.getLen
  }

  /** Adds what is directly in a directory; nothing where it is not there. */
  private def list(
      fileSystem: FileSystem,
      directory: Path,
      files: ArrayNode,
      directories: ArrayNode): Unit = {
    val found =
      try fileSystem.listStatus(directory)
      catch { case _: FileNotFoundException => Array.empty[FileStatus] }
    found.foreach { status =>
      val name = status.getPath.getName
      if (status.isFile) {
        files.addObject()
          .put("name", name)
          .put("size", status.getLen)
          .put("modified_ms", status.getModificationTime)
      } else if (status.isDirectory) directories.add(name)
    }
  }
}

/** Names of a file system's errors. */
object HadoopFiles {
  /** The kind, of the Python package, of a file system's error. */
  def kindOf(error: Throwable): String = error match {
    case _: FileNotFoundException => "file-not-found"
    case _: DirectoryGoneException => "directory-gone"
    case _: FileAlreadyExistsException | _: PathIsNotEmptyDirectoryException => "file-exists"
    case _: java.nio.file.FileAlreadyExistsException => "file-exists"
    case _: AccessControlException | _: java.nio.file.AccessDeniedException => "permission-denied"
    case _: UnsupportedFileSystemException => "unsupported-scheme"
    // A scheme whose class is known, and whose jar is not there.
    case e: RuntimeException if e.getCause.isInstanceOf[ClassNotFoundException] =>
      "unsupported-scheme"
    case _ if LocalDiskException.isFull(reasonOf(error)) => "storage-full"
    // Of HDFS: its class is in a jar that need not be there.
    case _ if error.getClass.getSimpleName.endsWith("QuotaExceededException") => "storage-full"
    case _ => "storage"
  }

  /** The first line of an error, behind its class. */
  def reasonOf(error: Throwable): String = s"${error.getClass.getSimpleName}: " +
    String.valueOf(error.getMessage).linesIterator.nextOption().getOrElse("")

  private val BufferBytes = 1 << 16

  /** More than the queries that one JVM mostly has. */
  private val MostConfigurations = 256

  /** The directory of a file that is to be written is not there. */
  private final class DirectoryGoneException(cause: FileNotFoundException)
      extends IOException(cause.getMessage, cause)

  /** A query's or a reader's configuration, and what writes its files, which keeps connections. */
  private final class Registered(val configuration: Configuration, val isOfQuery: Boolean) {
    private[this] val managers = new ConcurrentHashMap[String, CheckpointFileManager]()

    def manager(path: Path): CheckpointFileManager = {
      val uri = path.toUri
      managers.computeIfAbsent(
        s"${uri.getScheme}://${uri.getAuthority}",
        _ =>
          CheckpointFileManager.create(path.getParent, configuration) match {
            case found if found.getClass == classOf[FileSystemBasedCheckpointFileManager] =>
              new ReplacingManager(path.getParent, configuration)
            case found => found
          })
    }
  }

  /**
   * Spark's manager for file systems without `FileContext`. Most of them rename to no file that is
   * there, which Spark's takes for done.
   */
  private final class ReplacingManager(directory: Path, configuration: Configuration)
      extends FileSystemBasedCheckpointFileManager(directory, configuration) {
    override def renameTempFile(from: Path, to: Path, overwriteIfPossible: Boolean): Unit = {
      if (overwriteIfPossible) HadoopFiles.delete(fs, to, isTree = false)
      super.renameTempFile(from, to, overwriteIfPossible)
      // Its stream takes an error of a file that exists for done, too.
      if (overwriteIfPossible && fs.exists(from)) {
        HadoopFiles.delete(fs, from, isTree = false)
        throw new IOException(s"another writer was first: path=$to")
      }
    }
  }

  private def delete(fileSystem: FileSystem, path: Path, isTree: Boolean): Unit = {
    val isDone =
      try fileSystem.delete(path, isTree)
      catch { case _: FileNotFoundException => true }
    if (!isDone && fileSystem.exists(path)) throw new IOException(s"was not deleted: path=$path")
  }
}
