package io.statestore.testing

import java.net.URI

import org.apache.hadoop.fs.{Path, RawLocalFileSystem}

/**
 * The local disk as a file system of Hadoop's that renames to no file that is there, as most do,
 * and that has no `FileContext`.
 */
final class KeepingFileSystem extends RawLocalFileSystem {
  override def getScheme: String = "keep"
  override def getUri: URI = URI.create("keep:///")
  override def rename(from: Path, to: Path): Boolean = !exists(to) && super.rename(from, to)
}
