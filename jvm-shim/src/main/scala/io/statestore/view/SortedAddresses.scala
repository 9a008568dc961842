package io.statestore.view

import java.util.Arrays

import org.apache.spark.unsafe.Platform

/**
 * Ordered index of one column family: record addresses in key order, in blocks of at most 512, so
 * that an insert moves at most 6 kB. Keys are unique. Not thread-safe for writing; readers may run
 * beside each other. A cursor is valid while nothing is written; one of `frozen` is valid longer.
 *
 * Beside each address is the word of its key (`KeyWord`). A search compares words, which lie side
 * by side, and reads records, which lie anywhere in memory, only where two words are equal.
 */
private[statestore] final class SortedAddresses(pages: RecordPages) {
  import SortedAddresses._

  private var blocks = new Array[Block](1)
  private var numBlocks = 0
  private var numSlots = 0L // of all blocks, taken or not

  // Of the calls of `frozen` the number, those that are read, and the newest of them or 0. What was
  // made before that one, `blocks` too, is copied before it changes.
  private var numFrozen = 0L
  private var numRead = 0
  private var readUntil = 0L
  private var blocksMade = 0L

  private var words: KeyWord = _ // null where there was no key yet

  def insert(address: Int): Unit = {
    val base = pages.base(address)
    val at = pages.keyOffset(address)
    val length = pages.keyLength(address)
    if (numBlocks == 0) {
      chooseWords(address)
      addBlock(0, new Block(8))
    } else if (!words.fits(base, at, length)) {
      chooseWords(address)
      refreshWords()
    }
    val word = words.of(base, at, length)
    val place = seek(word, base, at, length)
    val number = blockOf(place)
    val block = ownBlock(number)
    numSlots -= block.numSlots
    block.insert(entryOf(place), address, word)
    numSlots += block.numSlots
    if (block.count == BlockSize) {
      // Keys that ascend, as times do, leave full blocks behind.
      val isLast = number == numBlocks - 1 && entryOf(place) == BlockSize - 1
      addBlock(number + 1, block.split(if (isLast) BlockSize - 1 else BlockSize / 2))
    }
  }

  /** Removes the entry with the key of `address`; there is one. */
  def remove(address: Int): Unit = {
    val place = seekRecord(address)
    val number = blockOf(place)
    val block = ownBlock(number)
    block.remove(entryOf(place))
    if (block.count == 0) dropBlock(number)
    else if (block.count < SparseBlock) {
      // Else keys that come and go would leave blocks of one entry each.
      if (number + 1 < numBlocks) join(number)
      if (number > 0) join(number - 1)
    }
  }

  /** Moves the entries of the next block to the end of one, where both are half a block at most. */
  private def join(number: Int): Unit = {
    val next = blocks(number + 1)
    if (blocks(number).count + next.count <= BlockSize / 2) {
      val block = ownBlock(number)
      numSlots -= block.numSlots
      block.append(next)
      numSlots += block.numSlots
      dropBlock(number + 1)
    }
  }

  /** Points the entry with the key of `address` at `address`; there is one. */
  def replace(address: Int): Unit = {
    val place = seekRecord(address)
    ownBlock(blockOf(place)).addresses(entryOf(place)) = address
  }

  /**
   * The index as it is now, for reading; later changes do not show in it. It takes no time: a block
   * is copied when it first changes. Who asks calls `thaw` when it has read all that it wants to.
   *
   * @param of the pages as they are now
   */
  def frozen(of: RecordPages): SortedAddresses = {
    numFrozen += 1
    numRead += 1
    readUntil = numFrozen
    val copy = new SortedAddresses(of)
    copy.blocks = blocks
    copy.numBlocks = numBlocks
    copy.words = words
    copy
  }

  /** One that `frozen` returned is read no more. */
  def thaw(): Unit = {
    numRead -= 1
    if (numRead == 0) readUntil = 0L
  }

  /** Addresses with `from <= key < until`, ascending; null bounds are open. */
  def range(from: Array[Byte], until: Array[Byte]): AddressCursor = {
    val untilSide = if (until == null || numBlocks == 0) 1 else words.side(until)
    val untilWord = if (untilSide == 0) words.ofBound(until) else Long.MaxValue
    val start = if (untilSide < 0) placeOf(numBlocks, 0) else startOf(from)
    new AddressCursor {
      private var nextBlock = blockOf(start)
      private var nextAt = entryOf(start)

      override def next(): Int = {
        while (nextBlock < numBlocks && nextAt >= blocks(nextBlock).count) {
          nextBlock += 1
          nextAt = 0
        }
        if (nextBlock >= numBlocks) return 0
        val block = blocks(nextBlock)
        val address = block.addresses(nextAt)
        val word = block.words(nextAt)
        val isBelow = untilSide > 0 || word < untilWord ||
          word == untilWord && RecordOrder.compareToBytes(pages, address, until) < 0
        if (!isBelow) return 0
        nextAt += 1
        address
      }
    }
  }

  /** Place of the first entry that is not below a bound, null for open. */
  private def startOf(from: Array[Byte]): Long = {
    val side = if (from == null || numBlocks == 0) -1 else words.side(from)
    if (side < 0) placeOf(0, 0)
    else if (side > 0) placeOf(numBlocks, 0)
    else seek(words.ofBound(from), from, ArrayStart, from.length)
  }

  def indexBytes: Long = numSlots * 12L + numBlocks * 56L

  /** Finds what is the word of all keys and of a new one; rare, for they are all looked at. */
  private def chooseWords(added: Int): Unit = {
    val differences = new KeyWord.Differences
    var i = 0
    while (i < numBlocks) {
      val block = blocks(i)
      var n = 0
      while (n < block.count) {
        differences.add(pages, block.addresses(n))
        n += 1
      }
      i += 1
    }
    differences.add(pages, added)
    words = differences.word
  }

  private def refreshWords(): Unit = {
    var i = 0
    while (i < numBlocks) {
      val block = ownBlock(i)
      var n = 0
      while (n < block.count) {
        block.words(n) = words.of(pages, block.addresses(n))
        n += 1
      }
      i += 1
    }
  }

  private def seekRecord(address: Int): Long = {
    val base = pages.base(address)
    val at = pages.keyOffset(address)
    val length = pages.keyLength(address)
    seek(words.of(base, at, length), base, at, length)
  }

  /** Place of the first entry that is not below a key, or below bytes whose `side` is zero. */
  private def seek(word: Long, base: AnyRef, at: Long, length: Int): Long = {
    var low = 0
    var high = numBlocks - 1
    while (low < high) {
      val middle = (low + high + 1) >>> 1
      if (compare(blocks(middle), 0, word, base, at, length) <= 0) low = middle
      else high = middle - 1
    }
    val number = low
    val block = blocks(number)
    low = 0
    high = block.count
    while (low < high) {
      val middle = (low + high) >>> 1
      if (compare(block, middle, word, base, at, length) < 0) low = middle + 1 else high = middle
    }
    placeOf(number, low)
  }

  private def compare(
      block: Block,
      i: Int,
      word: Long,
      base: AnyRef,
      at: Long,
      length: Int): Int = {
    val own = block.words(i)
    if (own != word) {
      java.lang.Long.compare(own, word)
    } else {
      val address = block.addresses(i)
      RecordOrder.compareKeys(
        pages.base(address),
        pages.keyOffset(address),
        pages.keyLength(address),
        base,
        at,
        length)
    }
  }

  /** A block that may be changed: no frozen index has it. */
  private def ownBlock(number: Int): Block = {
    val block = blocks(number)
    if (block.made >= readUntil) {
      block
    } else {
      val copy = block.copy()
      copy.made = numFrozen
      ownBlocks()
      blocks(number) = copy
      copy
    }
  }

  private def ownBlocks(): Unit = if (blocksMade < readUntil) {
    blocks = blocks.clone()
    blocksMade = numFrozen
  }

  private def dropBlock(number: Int): Unit = {
    ownBlocks()
    numSlots -= blocks(number).numSlots
    System.arraycopy(blocks, number + 1, blocks, number, numBlocks - number - 1)
    numBlocks -= 1
    blocks(numBlocks) = null
  }

  private def addBlock(at: Int, block: Block): Unit = {
    block.made = numFrozen
    ownBlocks()
    if (numBlocks == blocks.length) blocks = Arrays.copyOf(blocks, numBlocks * 2)
    System.arraycopy(blocks, at, blocks, at + 1, numBlocks - at)
    blocks(at) = block
    numBlocks += 1
    numSlots += block.numSlots
  }
}

private[statestore] object SortedAddresses {
  private val BlockSize = 512
  private val SparseBlock = BlockSize / 4
  private val ArrayStart = Platform.BYTE_ARRAY_OFFSET.toLong

  /** A block and an entry in it as one number: a read keeps them to itself, with no object. */
  @inline private def placeOf(block: Int, entry: Int): Long = block.toLong << 32 | entry

  @inline private def blockOf(place: Long): Int = (place >>> 32).toInt

  @inline private def entryOf(place: Long): Int = place.toInt

  private final class Block(capacity: Int) {
    var addresses = new Array[Int](capacity)
    var words = new Array[Long](capacity)
    var count = 0
    var made = 0L // calls of `frozen` before it

    def numSlots: Int = addresses.length

    def insert(at: Int, address: Int, word: Long): Unit = {
      if (count == addresses.length) {
        val capacity = math.min(count * 2, BlockSize)
        addresses = Arrays.copyOf(addresses, capacity)
        words = Arrays.copyOf(words, capacity)
      }
      System.arraycopy(addresses, at, addresses, at + 1, count - at)
      System.arraycopy(words, at, words, at + 1, count - at)
      addresses(at) = address
      words(at) = word
      count += 1
    }

    def remove(at: Int): Unit = {
      count -= 1
      System.arraycopy(addresses, at + 1, addresses, at, count - at)
      System.arraycopy(words, at + 1, words, at, count - at)
    }

    def append(other: Block): Unit = {
      val total = count + other.count
      if (total > addresses.length) {
        addresses = Arrays.copyOf(addresses, total)
        words = Arrays.copyOf(words, total)
      }
      System.arraycopy(other.addresses, 0, addresses, count, other.count)
      System.arraycopy(other.words, 0, words, count, other.count)
      count = total
    }

    def copy(): Block = {
      val other = new Block(0)
      other.addresses = addresses.clone()
      other.words = words.clone()
      other.count = count
      other
    }

    /** Gives its entries from `at` on to a block of their own. */
    def split(at: Int): Block = {
      val upper = new Block(BlockSize)
      upper.count = count - at
      System.arraycopy(addresses, at, upper.addresses, 0, upper.count)
      System.arraycopy(words, at, upper.words, 0, upper.count)
      count = at
      upper
    }
  }
}

/** Forward cursor over record addresses; 0 ends it. */
private[statestore] trait AddressCursor {
  def next(): Int
}
