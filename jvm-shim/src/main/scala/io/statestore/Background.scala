package io.statestore

import java.util.concurrent.{ExecutorService, LinkedBlockingQueue, ThreadPoolExecutor, TimeUnit}

private[statestore] object Background {

  /** At most `size` daemon threads, which end when they are idle. */
  def threads(name: String, size: Int): ExecutorService = {
    val pool = new ThreadPoolExecutor(
      size, size, IdleSeconds, TimeUnit.SECONDS, new LinkedBlockingQueue[Runnable],
      (work: Runnable) => {
        val thread = new Thread(work, name)
        thread.setDaemon(true)
        thread
      })
    pool.allowCoreThreadTimeOut(true)
    pool
  }

  private val IdleSeconds = 10L
}
