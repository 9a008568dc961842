package io.statestore.rocksdb

/** Prints whether two queries that ask for block caches of other sizes have the same one. */
object ReaderSettingsCheck {
  def main(args: Array[String]): Unit =
    println(ReaderSettings.of(1L << 20) eq ReaderSettings.of(2L << 20))
}
