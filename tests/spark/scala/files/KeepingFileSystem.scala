package io.statestore.testing

import java.io.IOException
import java.net.URI

import org.apache.hadoop.fs.{FSDataOutputStream, Path, RawLocalFileSystem}
import org.apache.hadoop.util.Progressable

/**
 * The local disk as a file system of Hadoop's that renames to no file that is there, as most do,
 * and that has no `FileContext`. A file named `unwritable` cannot be closed when it is written; one
 * named `contested` is there, of another writer's, whenever it is to be renamed to.
 */
final class KeepingFileSystem extends RawLocalFileSystem {
  override def getScheme: String = "keep"
  override def getUri: URI = URI.create("keep:///")

  override def rename(from: Path, to: Path): Boolean = {
    if (to.getName == "contested") super.create(to).close()
    !exists(to) && super.rename(from, to)
  }

  override def create(
      path: Path,
      overwrite: Boolean,
      bufferSize: Int,
      replication: Short,
      blockSize: Long,
      progress: Progressable): FSDataOutputStream = {
    val made = super.create(path, overwrite, bufferSize, replication, blockSize, progress)
    if (!path.getName.contains("unwritable")) made
    else {
      new FSDataOutputStream(made, null) {
        override def close(): Unit = {
          made.close()
          throw new IOException("the upload failed")
        }
      }
    }
  }
}
