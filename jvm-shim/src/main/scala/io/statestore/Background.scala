package io.statestore

import java.util.concurrent.{ExecutorService, LinkedBlockingQueue, ThreadPoolExecutor, TimeUnit}

private[statestore] object Background {

  /** At most `size` daemon threads, which end when they are idle. */
  def threads(name: String, size: Int): ExecutorService = {
    val pool = new ThreadPoolExecutor(
      size, size, IdleSeconds, TimeUnit.SECONDS, new LinkedBlockingQueue[Runnable], thread(name, _))
    pool.allowCoreThreadTimeOut(true)
    pool
  }

  /**
   * A daemon thread, to be started. Of who makes it it has the class loader, and no thread locals:
   * with them it would keep a session for as long as it lives.
   */
  def thread(name: String, work: Runnable): Thread = {
    val made = new Thread(null, work, name, 0L, false)
    made.setContextClassLoader(Thread.currentThread.getContextClassLoader)
    made.setDaemon(true)
    made
  }

  private val IdleSeconds = 10L
}
