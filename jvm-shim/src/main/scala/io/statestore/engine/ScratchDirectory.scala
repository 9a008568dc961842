package io.statestore.engine

import java.io.{File, IOException}
import java.nio.channels.FileChannel
import java.nio.file.{Files, Path, Paths}
import java.nio.file.StandardOpenOption.{CREATE, READ, WRITE}
import java.nio.file.attribute.PosixFilePermissions
import java.util.UUID
import java.util.concurrent.atomic.AtomicLong

import scala.jdk.CollectionConverters._
import scala.util.control.NonFatal

import io.statestore.ShimErrors
import org.slf4j.LoggerFactory

/**
 * A directory of this JVM and its engines for files that are on their way. The JVM and each engine
 * hold a shared POSIX record lock on its file `lock`; whoever finds that lock free removes the
 * directory, since all of them are gone.
 */
private[engine] final class ScratchDirectory private (val path: File, lock: FileChannel) {
  private[this] val counter = new AtomicLong()

  /** A path that no other file of this directory has. The file does not exist. */
  def newFile(prefix: String): File = new File(path, s"$prefix-${counter.incrementAndGet()}")

  /**
   * Check that nobody has removed the directory, which nothing but `create` may make.
   *
   * @throws EngineUnavailableException it is gone
   */
  def requirePresent(): Unit =
    if (ShimErrors.isGone(path)) throw ShimErrors.scratchGone(path)

  /** Remove the directory with all that is in it. Never raises; can be called again. */
  def remove(): Unit = {
    ScratchDirectory.deleteTree(path.toPath)
    try lock.close()
    catch { case _: IOException => () }
  }
}

private[engine] object ScratchDirectory {
  private val log = LoggerFactory.getLogger(classOf[ScratchDirectory])
  private val NamePrefix = "statestore-scratch-"

  /**
   * Make a directory in the first of `parents` that can be written, readable by this user only.
   *
   * @throws EngineUnavailableException none of them can be written
   * @throws java.io.IOException the task was killed
   */
  def create(parents: Seq[String]): ScratchDirectory = {
    val failures = Iterator.newBuilder[String]
    parents.iterator.flatMap { parent =>
      try Some(createIn(Paths.get(parent)))
      catch {
        case e: IOException if !ShimErrors.isInterruption(e) =>
          failures += s"$parent ($e)"
          None
      }
    }.nextOption().getOrElse(throw new io.statestore.EngineUnavailableException(
      s"no local directory can be written: directories=${failures.result().mkString("; ")}. " +
        "To fix: set spark.local.dir to a directory with free space that executors can write, " +
        "and whose file system has locks (fcntl)"))
  }

  private def createIn(parent: Path): ScratchDirectory = {
    // Java before 17.0.14 refuses a link to a directory.
    if (!Files.isDirectory(parent)) Files.createDirectories(parent)
    val path = parent.resolve(NamePrefix + UUID.randomUUID())
    Files.createDirectory(
      path,
      PosixFilePermissions.asFileAttribute(PosixFilePermissions.fromString("rwx------")))
    var lock: FileChannel = null
    try {
      lock = FileChannel.open(path.resolve("lock"), CREATE, READ, WRITE)
      // Shared: each engine takes the same lock beside this one.
      lock.lock(0L, Long.MaxValue, true)
      new ScratchDirectory(path.toFile, lock)
    } catch {
      case e: Throwable =>
        deleteTree(path)
        if (lock != null) lock.close()
        throw e
    }
  }

  def deleteTree(root: Path): Unit =
    try {
      val walk = Files.walk(root)
      // Deepest first; an engine that ends at the same moment deletes the same files.
      try walk.iterator().asScala.toSeq.reverse.foreach(Files.deleteIfExists)
      finally walk.close()
    } catch {
      case NonFatal(e) if Files.exists(root) =>
        log.warn(s"scratch file was not removed: path=$root error=$e")
      case NonFatal(_) => ()
    }
}
