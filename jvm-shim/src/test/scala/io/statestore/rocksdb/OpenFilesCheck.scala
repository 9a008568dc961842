package io.statestore.rocksdb

import scala.util.{Failure, Try}

import org.rocksdb.{FlushOptions, Options, RocksDB}

/** Opens views of one directory until no more files may be open, and prints what that raises. */
object OpenFilesCheck {
  def main(args: Array[String]): Unit = {
    val settings = ReaderSettings.of(1L << 20)
    val written = RocksDB.open(new Options().setCreateIfMissing(true), args(0))
    (0 until 8).foreach { number =>
      written.put(Array(number.toByte), Array[Byte](1))
      written.flush(new FlushOptions())
    }
    written.close()
    val opened = Iterator.continually(Try(new VersionReader(args(0), settings)))
    opened.take(1000).collectFirst { case Failure(e) => println(e) }
  }
}
