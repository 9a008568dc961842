package org.apache.spark.sql.execution.streaming.state

import java.util.UUID

import scala.util.{Random, Try}

import conformance.Asked
import org.apache.hadoop.conf.Configuration
import org.apache.spark.{SparkConf, SparkContext}
import org.apache.spark.sql.execution.streaming.runtime.StreamExecution
import org.apache.spark.sql.internal.SQLConf
import org.apache.spark.sql.types.StructType
import org.scalatest.{Args, Status}

/** Spark's own tests of any state store provider, on the one asked for. */
class StateStoreContractSuite extends StateStoreSuiteBase[StateStoreProvider] {
  import StateStoreTestsHelper._

  private val newest = 100
  // These providers want a running application; Spark's want none, as tests that start one do.
  private val startsSpark = "StateStore.get|SPARK-35763|SPARK-48997".r

  protected override def runTest(testName: String, args: Args): Status = {
    if (Asked.className.isEmpty || startsSpark.findFirstIn(testName).nonEmpty) {
      SparkContext.getActive.foreach(_.stop())
    } else SparkContext.getOrCreate(new SparkConf().setMaster("local").setAppName("test"))
    super.runTest(testName, args)
  }

  protected override def afterAll(): Unit =
    try SparkContext.getActive.foreach(_.stop())
    finally super.afterAll()

  override def newStoreProviderNoInit(): StateStoreProvider = StateStoreProvider.create(className)

  override def newStoreProvider(): StateStoreProvider = open()

  override def newStoreProvider(storeId: StateStoreId): StateStoreProvider = open(storeId)

  override def newStoreProvider(
      storeId: StateStoreId, useColumnFamilies: Boolean): StateStoreProvider =
    open(storeId, useColumnFamilies = useColumnFamilies)

  override def newStoreProvider(storeId: StateStoreId, conf: Configuration): StateStoreProvider =
    open(storeId, hadoopConf = conf)

  override def newStoreProvider(
      minDeltasForSnapshot: Int, numOfVersToRetainInMemory: Int): StateStoreProvider =
    open(conf = getDefaultSQLConf(minDeltasForSnapshot, numOfVersToRetainInMemory))

  override def newStoreProvider(
      keySchema: StructType,
      keyStateEncoderSpec: KeyStateEncoderSpec,
      useColumnFamilies: Boolean): StateStoreProvider =
    open(spec = keyStateEncoderSpec, useColumnFamilies = useColumnFamilies)

  override def newStoreProvider(useColumnFamilies: Boolean): StateStoreProvider =
    open(useColumnFamilies = useColumnFamilies)

  override def newStoreProviderWithClonedConf(storeId: StateStoreId): StateStoreProvider =
    open(storeId, conf = withProvider(SQLConf.get.clone()))

  /** A provider need not say which version is the latest: it is the last that can be loaded. */
  override def getLatestData(
      provider: StateStoreProvider, useColumnFamilies: Boolean): Set[((String, Int), Int)] =
    read(provider, useColumnFamilies) { reloaded =>
      val versions = (1 to newest).takeWhile(v => Try(reloaded.getStore(v).abort()).isSuccess)
      versions.lastOption.getOrElse(0)
    }

  override def getData(
      provider: StateStoreProvider,
      version: Int,
      useColumnFamilies: Boolean): Set[((String, Int), Int)] =
    if (version < 0) getLatestData(provider, useColumnFamilies)
    else read(provider, useColumnFamilies)(_ => version)

  override def getDefaultSQLConf(
      minDeltasForSnapshot: Int, numOfVersToRetainInMemory: Int): SQLConf = {
    val conf = withProvider(SQLConf.get.clone())
    conf.setConf(SQLConf.STATE_STORE_MIN_DELTAS_FOR_SNAPSHOT, minDeltasForSnapshot)
    conf.setConf(SQLConf.MAX_BATCHES_TO_RETAIN_IN_MEMORY, numOfVersToRetainInMemory)
    conf.setConf(SQLConf.MIN_BATCHES_TO_RETAIN, 2)
    conf.setConf(SQLConf.STATE_STORE_COMPRESSION_CODEC, SQLConf.get.stateStoreCompressionCodec)
    conf
  }

  override def getDefaultStoreConf(): StateStoreConf =
    new StateStoreConf(withProvider(SQLConf.get.clone()))

  private def className =
    Asked.className.getOrElse(classOf[RocksDBStateStoreProvider].getName)

  private def withProvider(conf: SQLConf): SQLConf = {
    conf.setConf(SQLConf.STATE_STORE_PROVIDER_CLASS, className)
    // Where no session is, an engine is told its Python in this way.
    sys.props.get("spark.pyspark.python").foreach(conf.setConfString("spark.pyspark.python", _))
    conf
  }

  private def open(
      storeId: StateStoreId = StateStoreId(newDir(), Random.nextInt(Int.MaxValue), 0),
      spec: KeyStateEncoderSpec = NoPrefixKeyStateEncoderSpec(keySchema),
      useColumnFamilies: Boolean = false,
      conf: SQLConf = getDefaultSQLConf(
        SQLConf.STATE_STORE_MIN_DELTAS_FOR_SNAPSHOT.defaultValue.get,
        SQLConf.MAX_BATCHES_TO_RETAIN_IN_MEMORY.defaultValue.get),
      hadoopConf: Configuration = new Configuration): StateStoreProvider = {
    val provider = newStoreProviderNoInit()
    // Outside a task nobody else says how many state partitions there are.
    val hadoop = new Configuration(hadoopConf)
    hadoop.set("statestore.numPartitions", "8")
    hadoop.set(StreamExecution.RUN_ID_KEY, UUID.randomUUID().toString)
    val storeConf = new StateStoreConf(conf)
    provider.init(storeId, keySchema, valueSchema, spec, useColumnFamilies, storeConf, hadoop)
    provider
  }

  private def read(provider: StateStoreProvider, useColumnFamilies: Boolean)(
      version: StateStoreProvider => Int): Set[((String, Int), Int)] =
    tryWithProviderResource(newStoreProvider(provider.stateStoreId, useColumnFamilies)) {
      reloaded =>
        reloaded.getStore(version(reloaded)).iterator().map(rowPairToDataPair).toSet
    }
}
