package io.statestore.provider

import io.statestore.ShimOptions
import io.statestore.keygroup.KeyGroups
import io.statestore.view._
import org.apache.hadoop.conf.Configuration
import org.apache.spark.sql.execution.streaming.state.{StateStoreConf, StateStoreId}

/** First commits of stores of `LongRows`, without a Spark. */
object LongCommits {
  import LongRows._

  def contextOf(backend: String, id: StateStoreId, options: ShimOptions): StoreContext =
    new StoreContext(
      backend,
      id,
      family,
      useColumnFamilies = false,
      schemas = None,
      StateStoreConf.empty,
      new Configuration(false),
      options)

  /** Puts so many rows; each call of the result begins the commit of them anew. */
  def commitOf(
      context: StoreContext, rows: Int, budgetBytes: Long = Long.MaxValue): () => StoreCommit = {
    val view = emptyView()
    val overlay = new Overlay(
      new KeyGroups(maxParallelism),
      budgetBytes,
      () => context.engines.scratchFile("run"),
      context.keepsRowsByKey,
      makeRoom = () => context.makeRoom())
    val state = stateOf(view.family(family.name), overlay)
    (1 to rows).foreach(number => state.put(row(number), row(-number)))
    () =>
      new StoreCommit(
        context,
        view,
        overlay,
        Seq(family),
        new HandleCounters,
        forceSnapshot = false)
  }
}
