package org.apache.spark.sql.execution.streaming.state

/** Spark 4.3 declares every member that the shim overrides. */
trait StoreMembers

trait ProviderMembers extends LagReports
