package io.statestore.provider

import java.util.concurrent.{CompletableFuture, ConcurrentHashMap}
import java.util.concurrent.{TimeoutException, TimeUnit}

import scala.jdk.CollectionConverters._

/**
 * The provider instances of this JVM that may hold rows of a query's store, one for each store.
 * Spark closes those of a run that has ended with its next maintenance only, and a restart makes
 * new ones: without this each restart would take the memory of all rows once more.
 */
private[provider] object ViewHolders {
  private val holders = new ConcurrentHashMap[String, ViewStateStoreProvider]()

  /** One that is loading for a task of the old run lets go when that task has ended. */
  private val MostWaitS = 1L

  /** The instance is about to open a store of a query; that of another run of it lets go. */
  def hold(store: String, holder: ViewStateStoreProvider): Unit = {
    val before = holders.put(store, holder)
    if (before != null && before.run != holder.run) {
      try letGo(before).get(MostWaitS, TimeUnit.SECONDS)
      catch { case _: TimeoutException => () }
    }
  }

  /** The instance is closed, and holds nothing. */
  def closed(store: String, holder: ViewStateStoreProvider): Unit = {
    holders.remove(store, holder)
    ()
  }

  /** A run has ended: its instances let go. */
  def ended(run: String): Unit =
    holders.asScala.foreach { case (store, holder) =>
      if (holder.run == run && holders.remove(store, holder)) letGo(holder)
    }

  private def letGo(holder: ViewStateStoreProvider): CompletableFuture[Void] =
    CompletableFuture.runAsync(() => holder.letGo(), ViewStateStoreProvider.background)
}
