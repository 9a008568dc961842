package io.statestore.view

import scala.util.{Random, Try}

/**
 * Takes and frees pieces of a few sizes at random, as many as the memory has room for, and prints
 * how many were refused; then takes all of it, and prints how that is refused.
 */
object OffHeapMemoryCheck {
  private val KeptMs = 50L
  private val Room = 64L << 10
  private val Sizes = Array(4 << 10, 5 << 10, 20 << 10)

  private var granted = 0L

  private val budget = new OffHeapMemory.Budget {
    override def grant(bytes: Long): Boolean = {
      val fits = granted + bytes <= Room
      if (fits) granted += bytes
      fits
    }
    override def giveBack(bytes: Long): Unit = granted -= bytes
    override def limit: String = s"room=$Room"
  }

  def main(args: Array[String]): Unit = {
    val Array(seed, number) = args.map(_.toInt)
    val random = new Random(seed)
    val memory = new OffHeapMemory(budget, KeptMs)
    var held = Vector.empty[(Long, Int)]
    var waited, refused = 0
    for (_ <- 0 until number) {
      val size = Sizes(random.nextInt(Sizes.length))
      // So much is free, or is kept as pieces of another size.
      while (held.map(_._2 + 8L).sum + size + 8 > Room) {
        val (address, _) = held(random.nextInt(held.length))
        memory.free(address)
        held = held.filterNot(_._1 == address)
      }
      val began = System.nanoTime()
      Try(memory.take(size)).fold(_ => refused += 1, address => held :+= (address -> size))
      if (System.nanoTime() - began > KeptMs * 200000L) waited += 1
      require(granted <= Room && held.map(_._1).distinct.length == held.length)
    }
    println(s"refused=$refused waited=$waited")
    println(Try(for (_ <- 0L to Room / Sizes(0)) memory.take(Sizes(0))))
  }
}
