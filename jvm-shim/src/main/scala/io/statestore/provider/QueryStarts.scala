package io.statestore.provider

import io.statestore.Resources
import io.statestore.engine.QueryRuns

import org.apache.spark.sql.{SparkSessionExtensions, SparkSessionExtensionsProvider}
import org.apache.spark.sql.catalyst.streaming.WriteToStream
import org.apache.spark.sql.internal.SQLConf

/**
 * Notices the start of a streaming query on the driver, also where no batch of it is planned for
 * long. Spark finds it by its name in the jar's `META-INF/services`.
 */
final class QueryStarts extends SparkSessionExtensionsProvider {
  override def apply(extensions: SparkSessionExtensions): Unit =
    extensions.injectCheckRule { session =>
      {
        case _: WriteToStream =>
          if (SQLConf.get.stateStoreProviderClass.startsWith("io.statestore.")) {
            Resources.checkSpark()
          }
          QueryRuns.note(session)
          Leases.watch()
        case _ => ()
      }
    }
}
