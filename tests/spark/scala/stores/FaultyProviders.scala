package io.statestore.testing

import java.lang.reflect.{InvocationTargetException, Proxy}

import org.apache.hadoop.conf.Configuration
import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions.{UnsafeProjection, UnsafeRow}
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.types.{DataType, StringType, StructType}
import org.apache.spark.unsafe.types.UTF8String

/**
 * The filesystem backend with a fault: the first row that is put in a store becomes what `putFirst`
 * makes of it.
 */
abstract class FaultyProvider(putFirst: (StateStore, UnsafeRow, UnsafeRow) => Unit)
    extends StateStoreProvider {
  private[this] val provider =
    StateStoreProvider.create("io.statestore.FileSystemStateStoreProvider")

  override def init(
      stateStoreId: StateStoreId,
      keySchema: StructType,
      valueSchema: StructType,
      keyStateEncoderSpec: KeyStateEncoderSpec,
      useColumnFamilies: Boolean,
      storeConfs: StateStoreConf,
      hadoopConf: Configuration,
      useMultipleValuesPerKey: Boolean,
      stateSchemaProvider: Option[StateSchemaProvider]): Unit = provider.init(
    stateStoreId,
    keySchema,
    valueSchema,
    keyStateEncoderSpec,
    useColumnFamilies,
    storeConfs,
    hadoopConf,
    useMultipleValuesPerKey,
    stateSchemaProvider)

  override def stateStoreId: StateStoreId = provider.stateStoreId

  override def close(): Unit = provider.close()

  override def getReadStore(version: Long, uniqueId: Option[String]): ReadStateStore =
    provider.getReadStore(version, uniqueId)

  override def getStore(
      version: Long,
      stateStoreCkptId: Option[String],
      forceSnapshotOnCommit: Boolean,
      loadEmpty: Boolean): StateStore = {
    val store = provider.getStore(version, stateStoreCkptId, forceSnapshotOnCommit, loadEmpty)
    var isFirst = true
    Proxy.newProxyInstance(
      getClass.getClassLoader,
      Array[Class[_]](classOf[StateStore]),
      (_, method, arguments) =>
        if (method.getName == "put" && isFirst) {
          isFirst = false
          def row(index: Int) = arguments(index).asInstanceOf[UnsafeRow]
          putFirst(store, row(0), row(1))
          null
        } else {
          try method.invoke(store, Option(arguments).getOrElse(Array.empty[AnyRef]): _*)
          catch { case e: InvocationTargetException => throw e.getCause }
        }).asInstanceOf[StateStore]
  }
}

/** Loses a row. */
final class RowLosingProvider extends FaultyProvider((_, _, _) => ())

/** Changes the first column of a value. */
final class ValueChangingProvider
    extends FaultyProvider((store, key, value) => {
      val other = value.copy()
      other.setLong(0, value.getLong(0) + 1L)
      store.put(key, other)
    })

/** Makes up a row of a key that is one text. */
final class RowAddingProvider
    extends FaultyProvider((store, key, value) => {
      store.put(key, value)
      val toKey = UnsafeProjection.create(Array[DataType](StringType))
      store.put(toKey(InternalRow(UTF8String.fromString("made up"))), value)
    })
