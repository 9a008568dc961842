package io.statestore.engine

import java.io.{EOFException, File, FileNotFoundException, IOException, InputStream, OutputStream}
import java.nio.file.Files
import java.util.LinkedHashMap
import java.util.Map.Entry

import com.fasterxml.jackson.databind.node.ObjectNode
import io.statestore.Json
import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.{FileAlreadyExistsException, FileSystem, Path}
import org.apache.hadoop.fs.{PathIsNotEmptyDirectoryException, UnsupportedFileSystemException}
import org.apache.hadoop.security.AccessControlException

import org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager

/**
 * Files of every file system that Hadoop can open, for engines and for Python on the driver: what
 * `statestore/io/hadoop.py` asks for. Bytes travel in local files. Durable files are written as
 * Spark writes its own, through its `CheckpointFileManager`. Thread-safe.
 */
final class HadoopFiles {
  import HadoopFiles._

  // In order of use, guarded by this. Of queries that ended some stay: their snapshots go on.
  private[this] val configurations =
    new LinkedHashMap[String, Configuration](16, 0.75f, true) {
      override def removeEldestEntry(eldest: Entry[String, Configuration]): Boolean =
        size > MostConfigurations
    }

  /**
   * Use the Hadoop configuration of the query that has this checkpoint. Those that were not used
   * for longest are forgotten when there are very many.
   */
  def register(checkpoint: String, configuration: Configuration): Unit = synchronized {
    configurations.put(checkpoint, configuration)
    ()
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
      val configuration = synchronized(configurations.get(request.path("checkpoint").asText))
      if (configuration == null) throw new IOException("checkpoint belongs to no query of this JVM")
      perform(request, path, configuration, reply.putObject("ok"))
    } catch {
      // A file system whose jar lacks another one is a LinkageError.
      case e @ (_: Exception | _: LinkageError) =>
        reply.remove("ok")
        reply.putObject("error").put("kind", kindOf(e)).put("reason", reasonOf(e))
    }
    reply
  }

  private def perform(
      request: ObjectNode,
      path: Path,
      configuration: Configuration,
      reply: ObjectNode): Unit = {
    lazy val fileSystem = path.getFileSystem(configuration)
    request.get("op").asText match {
      case "publish" =>
        publish(
          new File(request.get("local_path").asText),
          path,
          request.get("overwrite").asBoolean,
          configuration)
      case "read" =>
        read(
          fileSystem,
          path,
          request.get("offset").asLong,
          request.get("length").asLong,
          new File(request.get("local_path").asText),
          reply)
      case "stat" => describe(fileSystem, path, reply)
      case "delete" =>
        // Not recursively: only files are ever asked for.
        try fileSystem.delete(path, false)
        catch { case _: FileNotFoundException => () }
        ()
      case "list" => list(fileSystem, path, reply)
      case "make_directory" =>
        if (!fileSystem.mkdirs(path)) throw new IOException(s"cannot make a directory: path=$path")
      case other => throw new IllegalArgumentException(s"unknown operation: op=$other")
    }
  }

  private def publish(
      local: File,
      path: Path,
      overwrite: Boolean,
      configuration: Configuration): Unit = {
    // The rename decides, but one that is refused would leave the uploaded file behind.
    if (!overwrite && path.getFileSystem(configuration).exists(path)) {
      throw new FileAlreadyExistsException(path.toString)
    }
    val out = CheckpointFileManager.create(path.getParent, configuration)
      .createAtomic(path, overwriteIfPossible = overwrite)
    try {
      Files.copy(local.toPath, out)
      out.close()
    } catch {
      case e: Throwable =>
        out.cancel()
        throw e
    }
  }

  /** Copies `length` bytes from `offset`, fewer at the end; a negative offset is from the end. */
  private def read(
      fileSystem: FileSystem,
      path: Path,
      offset: Long,
      length: Long,
      local: File,
      reply: ObjectNode): Unit = {
    val size = describe(fileSystem, path, reply)
    val start = if (offset < 0) math.max(size + offset, 0L) else math.min(offset, size)
    val wanted = math.min(length, size - start)
    val in = fileSystem.open(path)
    try {
      val out = Files.newOutputStream(local.toPath)
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

  private def list(fileSystem: FileSystem, path: Path, reply: ObjectNode): Unit = {
    val files = reply.putArray("files")
    val found =
      try fileSystem.listStatus(path)
      catch { case _: FileNotFoundException => Array.empty[org.apache.hadoop.fs.FileStatus] }
    found.filter(_.isFile).foreach { status =>
      files.addObject()
        .put("name", status.getPath.getName)
        .put("size", status.getLen)
        .put("modified_ms", status.getModificationTime)
    }
  }

  private def kindOf(error: Throwable): String = error match {
    case _: FileNotFoundException => "file-not-found"
    case _: FileAlreadyExistsException | _: PathIsNotEmptyDirectoryException => "file-exists"
    case _: java.nio.file.FileAlreadyExistsException => "file-exists"
    case _: AccessControlException | _: java.nio.file.AccessDeniedException => "permission-denied"
    case _: UnsupportedFileSystemException => "unsupported-scheme"
    case _ if reasonOf(error).contains("No space left") => "storage-full"
    case _ => "storage"
  }

  private def reasonOf(error: Throwable): String = s"${error.getClass.getSimpleName}: " +
    String.valueOf(error.getMessage).linesIterator.nextOption().getOrElse("")
}

private object HadoopFiles {
  private val BufferBytes = 1 << 16

  /** More than there are queries in one JVM. */
  private val MostConfigurations = 256
}
