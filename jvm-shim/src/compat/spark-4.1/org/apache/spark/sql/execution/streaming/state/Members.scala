package org.apache.spark.sql.execution.streaming.state

trait StoreMembers extends StoreMembersUntil41

trait ProviderMembers extends ProviderMembersUntil41 with LagReports {
  override def upgradeReadStoreToWriteStore(
      readStore: ReadStateStore, version: Long, uniqueId: Option[String]): StateStore =
    upgradeReadStoreToWriteStore(readStore, version, uniqueId, forceSnapshotOnCommit = false)
}

/** The Spark that this jar is made for. */
object SparkVersion extends SparkSince41 with SparkUntil41
