package io.statestore.keygroup

/**
 * The key groups of a checkpoint: `maxParallelism` numbers, of which a state partition p of N owns
 * those with `group mod N = p`. The order within a state file is `rank`, as docs/format.md says.
 */
final class KeyGroups(val maxParallelism: Int) {
  if (maxParallelism < 1 || maxParallelism > KeyGroups.Largest) {
    throw new IllegalArgumentException(
      s"[invalid-option] max parallelism is out of range: max_parallelism=$maxParallelism. " +
        s"To fix: set it to a whole number from 1 to ${KeyGroups.Largest}")
  }

  private[this] val bits = Integer.numberOfTrailingZeros(maxParallelism)
  private[this] val odd = maxParallelism >> bits
  private[this] val mask = (1 << bits) - 1

  /** Place of a key group in a state file: a bijection of [0, maxParallelism) onto itself. */
  def rank(group: Int): Int = {
    val reversed = if (bits == 0) 0 else Integer.reverse(group & mask) >>> (32 - bits)
    reversed * odd + (group >> bits)
  }

  /** The key group at a place: the inverse of `rank`. */
  def groupOfRank(rank: Int): Int = {
    val low = if (bits == 0) 0 else Integer.reverse(rank / odd) >>> (32 - bits)
    ((rank % odd) << bits) | low
  }
}

object KeyGroups {

  /** The most key groups a checkpoint can have: one fits an unsigned 16-bit column with room. */
  val Largest: Int = 32768
}
