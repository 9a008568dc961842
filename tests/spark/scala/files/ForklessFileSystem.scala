package io.statestore.testing

import java.net.URI
import java.nio.file.Files
import java.nio.file.attribute.PosixFilePermissions

import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs._
import org.apache.hadoop.fs.local.LocalConfigKeys
import org.apache.hadoop.fs.permission.FsPermission

/**
 * Hadoop's local file system, but that it asks the JVM where Hadoop, for lack of its native
 * library, starts a process: `chmod` for each file that is made, `readlink` for each renamed.
 */
final class ForklessRawFileSystem extends RawLocalFileSystem {
  override def setPermission(path: Path, permission: FsPermission): Unit = {
    val bits = new FsPermission((permission.toShort & 0x1ff).toShort) // without the sticky bit
    Files.setPosixFilePermissions(
      pathToFile(path).toPath,
      PosixFilePermissions.fromString(bits.toString))
    ()
  }

  override def getFileLinkStatus(path: Path): FileStatus =
    if (Files.isSymbolicLink(pathToFile(path).toPath)) super.getFileLinkStatus(path)
    else getFileStatus(path)
}

/** `fs.file.impl` */
final class ForklessFileSystem extends LocalFileSystem(new ForklessRawFileSystem)

/** `fs.AbstractFileSystem.file.impl` */
final class ForklessFs(uri: URI, conf: Configuration)
    extends ChecksumFs(new ForklessRawFs(uri, conf))

final class ForklessRawFs(uri: URI, conf: Configuration)
    extends DelegateToFileSystem(uri, new ForklessRawFileSystem, conf, uri.getScheme, false) {
  override def getUriDefaultPort: Int = -1
  override def getServerDefaults(path: Path): FsServerDefaults =
    LocalConfigKeys.getServerDefaults
  override def isValidName(name: String): Boolean = true
}
