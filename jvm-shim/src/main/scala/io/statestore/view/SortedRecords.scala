package io.statestore.view

/**
 * Overlay records in the order of state files: by rank of the key group, column family, key bytes;
 * or without the first. A prefix is `rank << 16 | column family`.
 */
private[statestore] final class SortedRecords private (
    prefixes: Array[Int],
    addresses: Array[Int],
    val length: Int) {
  def prefix(i: Int): Int = prefixes(i)
  def address(i: Int): Int = addresses(i)
}

/**
 * One stable counting sort by rank, then a merge sort within each key group and family. Keys are
 * compared by their words (`KeyWord`, of the keys of a family); only where those are equal does a
 * comparison go to the records.
 */
private[statestore] object SortedRecords {
  val FamilyBits = 16
  val FamilyMask: Int = (1 << FamilyBits) - 1

  /** The heap records of `families`, all of them in `pages`. */
  def of(
      pages: RecordPages,
      families: Iterable[OverlayFamily],
      maxParallelism: Int,
      byKey: Boolean): SortedRecords = {
    // A method for each loop: the JVM would compile one with all of them for ever so long, while
    // the first large commit waits for it.
    val unsorted = new Items(families.iterator.map(_.maxHeapRecords).sum)
    val total = families.toSeq.sortBy(_.family.id).foldLeft(0) { (from, family) =>
      val until = collect(family, unsorted, from)
      fillWords(pages, unsorted, from, until)
      until
    }
    val items = if (byKey) unsorted else sortByRank(unsorted, total, maxParallelism)
    val sorter = new KeySorter(pages, items, if (byKey) new Items(total) else unsorted)
    sortGroups(sorter, items.prefixes, total, prefixMask(byKey))
    new SortedRecords(items.prefixes, items.addresses, total)
  }

  /** Puts the records of a family from an index on; returns the index behind the last. */
  private def collect(family: OverlayFamily, into: Items, from: Int): Int = {
    val id = family.family.id
    var until = from
    family.foreachOnHeap { (address, rank) =>
      into.addresses(until) = address
      into.prefixes(until) = (rank << FamilyBits) | id
      until += 1
    }
    until
  }

  private def fillWords(pages: RecordPages, items: Items, from: Int, until: Int): Unit = {
    val differences = new KeyWord.Differences
    var i = from
    while (i < until) {
      differences.add(pages, items.addresses(i))
      i += 1
    }
    val word = if (from < until) differences.word else null
    i = from
    while (i < until) {
      items.words(i) = word.of(pages, items.addresses(i))
      i += 1
    }
  }

  private def sortGroups(sorter: KeySorter, prefixes: Array[Int], count: Int, mask: Int): Unit = {
    var from = 0
    while (from < count) {
      var until = from + 1
      val prefix = prefixes(from) & mask
      while (until < count && (prefixes(until) & mask) == prefix) until += 1
      sorter.sort(from, until)
      from = until
    }
  }

  /** The part of a prefix that goes before the key in the order. */
  def prefixMask(byKey: Boolean): Int = if (byKey) FamilyMask else -1

  private final class Items(capacity: Int) {
    val prefixes = new Array[Int](capacity)
    val addresses = new Array[Int](capacity)

    /** A word of the key that sorts, as a signed number, like its bytes do. */
    val words = new Array[Long](capacity)

    def set(to: Int, from: Items, i: Int): Unit = {
      prefixes(to) = from.prefixes(i)
      addresses(to) = from.addresses(i)
      words(to) = from.words(i)
    }
  }

  private def sortByRank(items: Items, count: Int, maxParallelism: Int): Items = {
    val next = new Array[Int](maxParallelism + 1)
    val prefixes = items.prefixes
    var i = 0
    while (i < count) {
      next((prefixes(i) >>> FamilyBits) + 1) += 1
      i += 1
    }
    i = 1
    while (i < maxParallelism) {
      next(i) += next(i - 1)
      i += 1
    }
    val sorted = new Items(count)
    i = 0
    while (i < count) {
      val rank = prefixes(i) >>> FamilyBits
      val to = next(rank)
      next(rank) = to + 1
      sorted.set(to, items, i)
      i += 1
    }
    sorted
  }

  private final class KeySorter(pages: RecordPages, items: Items, scratch: Items) {
    private[this] val addresses = items.addresses
    private[this] val words = items.words
    private[this] val prefixes = items.prefixes

    /** Sorts short runs, then merges them; a recursion would take the JVM long to compile. */
    def sort(from: Int, until: Int): Unit = {
      var run = from
      while (run < until) {
        insertionSort(run, math.min(run + LongestInsertionSort, until))
        run += LongestInsertionSort
      }
      var length = LongestInsertionSort
      while (length < until - from) {
        var left = from
        while (left < until - length) {
          merge(left, left + length, math.min(left + 2 * length, until))
          left += 2 * length
        }
        length *= 2
      }
    }

    private def compare(word: Long, address: Int, otherWord: Long, otherAddress: Int): Int =
      if (word != otherWord) java.lang.Long.compare(word, otherWord)
      else RecordOrder.compareRecords(pages, address, pages, otherAddress)

    private def insertionSort(from: Int, until: Int): Unit = {
      var i = from + 1
      while (i < until) {
        val word = words(i)
        val address = addresses(i)
        val prefix = prefixes(i)
        var to = i
        while (to > from && compare(words(to - 1), addresses(to - 1), word, address) > 0) {
          words(to) = words(to - 1)
          addresses(to) = addresses(to - 1)
          prefixes(to) = prefixes(to - 1)
          to -= 1
        }
        words(to) = word
        addresses(to) = address
        prefixes(to) = prefix
        i += 1
      }
    }

    private def merge(from: Int, middle: Int, until: Int): Unit = {
      // They are in order where the input is, as rows are that are copied from RocksDB.
      val last = middle - 1
      if (compare(words(last), addresses(last), words(middle), addresses(middle)) <= 0) return
      System.arraycopy(words, from, scratch.words, from, middle - from)
      System.arraycopy(addresses, from, scratch.addresses, from, middle - from)
      System.arraycopy(prefixes, from, scratch.prefixes, from, middle - from)
      var left = from
      var right = middle
      var to = from
      while (left < middle) {
        val takeRight = right < until && compare(
          words(right), addresses(right), scratch.words(left), scratch.addresses(left)) < 0
        if (takeRight) {
          items.set(to, items, right)
          right += 1
        } else {
          items.set(to, scratch, left)
          left += 1
        }
        to += 1
      }
    }
  }

  private def LongestInsertionSort = 16
}
