package io.statestore.view

import org.apache.spark.unsafe.Platform

import scala.util.Try

/** Adds a record to pages that have no address left; prints how that is refused. */
object FullPagesCheck {

  def main(args: Array[String]): Unit = {
    val pages = new RecordPages
    // Of memory that is not there, and not read.
    pages.addMappedPages(0L, RecordPages.PageUnits.toLong * RecordPages.MaxPages)
    val key = new Array[Byte](8)
    val at = Platform.BYTE_ARRAY_OFFSET.toLong
    println(Try(pages.append(RecordPages.Put, key, at, key.length, null, 0L, 0)))
  }
}
