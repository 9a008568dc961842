package io.statestore.provider

import io.statestore.{Resources, ShimOptions}
import io.statestore.engine.QueryRuns

import org.apache.spark.sql.{SparkSessionExtensions, SparkSessionExtensionsProvider}
import org.apache.spark.sql.catalyst.streaming.WriteToStream
import org.apache.spark.sql.execution.streaming.state.StateStoreConf
import org.apache.spark.sql.internal.SQLConf

/**
 * Notices the start of a streaming query on the driver, also where no batch of it is planned for
 * long, and refuses options that no store of it would take. What Spark pins in the offset log is
 * not among them yet: those are the options that somebody set. Spark finds this class by its name
 * in the jar's `META-INF/services`.
 */
final class QueryStarts extends SparkSessionExtensionsProvider {
  private[this] val RocksDB = "io.statestore.RocksDBStateStoreProvider"

  override def apply(extensions: SparkSessionExtensions): Unit =
    extensions.injectCheckRule { session =>
      {
        case _: WriteToStream =>
          val provider = SQLConf.get.stateStoreProviderClass
          if (provider.startsWith("io.statestore.")) {
            Resources.checkSpark()
            val options = new StateStoreConf(SQLConf.get).sqlConfs
            ShimOptions.parse(options)
            if (provider == RocksDB) ShimOptions.warnOfIgnored(options)
          }
          QueryRuns.note(session)
          Leases.watch()
        case _ => ()
      }
    }
}
