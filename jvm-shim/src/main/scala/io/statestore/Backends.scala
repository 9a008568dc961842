package io.statestore

/** The state backends of this package. */
object Backends {

  /** Provider class by backend. */
  val Providers: Map[String, String] = Map(
    "filesystem" -> classOf[FileSystemStateStoreProvider].getName,
    "heap" -> classOf[HeapStateStoreProvider].getName,
    "rocksdb" -> classOf[RocksDBStateStoreProvider].getName)

  /** Whether a class is a provider of this package. */
  def isOurs(providerClass: String): Boolean = providerClass.startsWith("io.statestore.")
}
