package org.apache.spark.sql.execution.datasources.v2.state

import conformance.{Asked, Redirected}
import org.apache.spark.sql.execution.streaming.state.StateStoreProvider
import org.apache.spark.sql.internal.SQLConf

/** Spark's own tests of the state data source, on the provider asked for. */
class StateReaderSuite extends StateDataSourceReadSuite with Redirected {
  protected override def newStateStoreProvider(): StateStoreProvider = AskedProvider.make()

  override def beforeAll(): Unit = {
    super.beforeAll()
    Asked.className.foreach(spark.conf.set(SQLConf.STATE_STORE_PROVIDER_CLASS.key, _))
    spark.conf.set(SQLConf.STATE_STORE_MIN_DELTAS_FOR_SNAPSHOT.key, 2L)
    spark.conf.set("spark.sql.streaming.stateStore.snapshot.maxChainLength", 2L)
  }

  test("ERROR: snapshot of version not found")(testSnapshotNotFound())
  test("provider.replayReadStoreFromSnapshot")(testGetReadStoreWithStartVersion())
  test("option snapshotPartitionId")(testSnapshotPartitionId())
}

/** Likewise of its change feed. */
class StateChangeFeedSuite extends StateDataSourceChangeDataReaderSuite with Redirected {
  protected override def newStateStoreProvider(): StateStoreProvider = AskedProvider.make()
}

private object AskedProvider {
  def make(): StateStoreProvider = StateStoreProvider.create(
    Asked.className.getOrElse(SQLConf.STATE_STORE_PROVIDER_CLASS.defaultValue.get))
}
