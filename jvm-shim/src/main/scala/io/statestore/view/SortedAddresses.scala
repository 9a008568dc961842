package io.statestore.view

import java.util.Arrays

/**
 * Ordered index of one column family: record addresses in key order, in blocks of at most 512, so
 * that an insert moves at most 2 kB. Keys are unique. Not thread-safe for writing; an iterator is
 * valid while nothing is written.
 */
private[statestore] final class SortedAddresses(pages: RecordPages) {
  import SortedAddresses._

  private var blocks = new Array[Array[Int]](1)
  private var counts = new Array[Int](1)
  private var numBlocks = 0

  def insert(address: Int): Unit = {
    if (numBlocks == 0) {
      addBlock(0, new Array[Int](8), 0)
    }
    val block = blockFor(i => RecordOrder.compareRecords(pages, i, pages, address))
    var addresses = blocks(block)
    val count = counts(block)
    val at = lowerBound(addresses, count, RecordOrder.compareRecords(pages, _, pages, address))
    if (count == addresses.length) {
      addresses = Arrays.copyOf(addresses, math.min(count * 2, BlockSize))
      blocks(block) = addresses
    }
    System.arraycopy(addresses, at, addresses, at + 1, count - at)
    addresses(at) = address
    counts(block) = count + 1
    if (count + 1 == BlockSize) split(block)
  }

  /** Removes the entry with the key of `address`; there is one. */
  def remove(address: Int): Unit = {
    val (block, at) = locate(address)
    val count = counts(block) - 1
    System.arraycopy(blocks(block), at + 1, blocks(block), at, count - at)
    counts(block) = count
    if (count == 0) {
      System.arraycopy(blocks, block + 1, blocks, block, numBlocks - block - 1)
      System.arraycopy(counts, block + 1, counts, block, numBlocks - block - 1)
      numBlocks -= 1
    }
  }

  /** Points the entry with the key of `address` at `address`; there is one. */
  def replace(address: Int): Unit = {
    val (block, at) = locate(address)
    blocks(block)(at) = address
  }

  /** Addresses with `from <= key < until`, ascending; null bounds are open. */
  def range(from: Array[Byte], until: Array[Byte]): AddressCursor = {
    var block = 0
    var at = 0
    if (from != null && numBlocks > 0) {
      block = blockFor(RecordOrder.compareToBytes(pages, _, from))
      at = lowerBound(blocks(block), counts(block), RecordOrder.compareToBytes(pages, _, from))
    }
    new AddressCursor {
      private var nextBlock = block
      private var nextAt = at

      override def next(): Int = {
        while (nextBlock < numBlocks && nextAt >= counts(nextBlock)) {
          nextBlock += 1
          nextAt = 0
        }
        if (nextBlock >= numBlocks) return 0
        val address = blocks(nextBlock)(nextAt)
        if (until != null && RecordOrder.compareToBytes(pages, address, until) >= 0) return 0
        nextAt += 1
        address
      }
    }
  }

  def indexBytes: Long = {
    var bytes = 0L
    var i = 0
    while (i < numBlocks) {
      bytes += blocks(i).length * 4L + 16L
      i += 1
    }
    bytes
  }

  private def locate(address: Int): (Int, Int) = {
    val block = blockFor(RecordOrder.compareRecords(pages, _, pages, address))
    val at = lowerBound(
      blocks(block),
      counts(block),
      RecordOrder.compareRecords(pages, _, pages, address))
    (block, at)
  }

  /** The last block whose first key is not above the one compared with. */
  private def blockFor(compare: Int => Int): Int = {
    var low = 0
    var high = numBlocks - 1
    while (low < high) {
      val middle = (low + high + 1) >>> 1
      if (compare(blocks(middle)(0)) <= 0) low = middle else high = middle - 1
    }
    low
  }

  private def lowerBound(addresses: Array[Int], count: Int, compare: Int => Int): Int = {
    var low = 0
    var high = count
    while (low < high) {
      val middle = (low + high) >>> 1
      if (compare(addresses(middle)) < 0) low = middle + 1 else high = middle
    }
    low
  }

  private def split(block: Int): Unit = {
    val half = BlockSize / 2
    val upper = new Array[Int](BlockSize)
    System.arraycopy(blocks(block), half, upper, 0, BlockSize - half)
    counts(block) = half
    addBlock(block + 1, upper, BlockSize - half)
  }

  private def addBlock(at: Int, block: Array[Int], count: Int): Unit = {
    if (numBlocks == blocks.length) {
      blocks = Arrays.copyOf(blocks, numBlocks * 2)
      counts = Arrays.copyOf(counts, numBlocks * 2)
    }
    System.arraycopy(blocks, at, blocks, at + 1, numBlocks - at)
    System.arraycopy(counts, at, counts, at + 1, numBlocks - at)
    blocks(at) = block
    counts(at) = count
    numBlocks += 1
  }
}

private[statestore] object SortedAddresses {
  private val BlockSize = 512
}

/** Forward cursor over record addresses; 0 ends it. */
private[statestore] trait AddressCursor {
  def next(): Int
}
