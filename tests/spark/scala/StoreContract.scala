package io.statestore.testing

import java.util.UUID

import scala.collection.mutable
import scala.util.{Random, Try}

import org.apache.hadoop.conf.Configuration
import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions.{UnsafeProjection, UnsafeRow}
import org.apache.spark.sql.classic.SparkSession
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.types._
import org.apache.spark.unsafe.types.UTF8String

/**
 * Random calls of every method of a state store, without a query. The transcript of one seed is the
 * same for every provider that keeps Spark's contract. Rows are given in projections' own buffers,
 * which the next call overwrites, as operators do.
 */
object StoreContract {
  private val text = new StructType().add("s", StringType)
  private val pair = new StructType().add("g", StringType).add("s", StringType)
  private val timed = new StructType().add("t", LongType).add("s", StringType)
  private val atTime = new StructType().add("s", StringType).add("__event_time", LongType)

  private final case class Family(name: String, spec: KeyStateEncoderSpec, multi: Boolean) {
    val toKey: UnsafeProjection = UnsafeProjection.create(spec.keySchema)
  }

  private def newFamilies = Seq(
    Family("values", NoPrefixKeyStateEncoderSpec(text), multi = false),
    Family("lists", NoPrefixKeyStateEncoderSpec(text), multi = true),
    Family("maps", PrefixKeyScanStateEncoderSpec(pair, 1), multi = false),
    Family("timers", RangeKeyScanStateEncoderSpec(timed, Seq(0)), multi = false),
    Family("byTime", TimestampAsPrefixKeyStateEncoderSpec(atTime), multi = true),
    Family("byKey", TimestampAsPostfixKeyStateEncoderSpec(atTime), multi = true))

  /**
   * Runs `batches` batches and returns one line per result. The line `stale` says that an opened
   * store does not show the rows that its version was committed with. (Spark's RocksDB provider may
   * load the rows of the first try of a version that was committed twice.)
   */
  def transcript(
      spark: SparkSession,
      root: String,
      providerClass: String,
      seed: Long,
      batches: Int): String = {
    val hadoopConf = newHadoopConf(spark)
    val run = new Run(seed, () => open(spark, root, providerClass, hadoopConf))
    (1 to batches).foreach(run.batch)
    run.close()
    run.lines.mkString("\n")
  }

  /**
   * A task and its zombie commit version 2 of one store with different rows, the zombie first; then
   * the zombie's instance of the store goes on. Returns what it meets, a line a step.
   */
  def twoAttempts(
      spark: SparkSession,
      root: String,
      providerClass: String,
      checkpointFormat: Int): String = {
    val hadoopConf = newHadoopConf(spark)
    def newProvider() = open(spark, root, providerClass, hadoopConf, checkpointFormat)
    val (task, zombie) = (newProvider(), newProvider())
    val toText = UnsafeProjection.create(text)
    def row(value: String) = toText(InternalRow(UTF8String.fromString(value))).copy()
    val key = row("key")
    val lines = mutable.ArrayBuffer.empty[String]
    def attempt(
        provider: StateStoreProvider,
        version: Long,
        id: Option[String],
        value: String): Option[String] = {
      val store = provider.getStore(version, id)
      val found = Option(store.get(key)).fold("-")(_.getUTF8String(0).toString)
      store.put(key, row(value))
      val result = Try(store.commit())
      lines += s"found $found committed ${result.toOption.getOrElse("-")}"
      if (result.isSuccess) store.getStateStoreCheckpointInfo().stateStoreCkptId else None
    }
    val base = attempt(task, 0, None, "base")
    val zombies = attempt(zombie, 1, base, "zombie")
    val tasks = attempt(task, 1, base, "task")
    attempt(zombie, 2, zombies, "next")
    attempt(zombie, 2, tasks, "next")
    Seq(task, zombie).foreach(_.close())
    lines.mkString("\n")
  }

  /**
   * In one batch a column family with rows is removed, made anew and written. Returns what it shows
   * at each step, and after a restart.
   */
  def familyMadeAnew(spark: SparkSession, root: String, providerClass: String): String = {
    val hadoopConf = newHadoopConf(spark)
    val toText = UnsafeProjection.create(text)
    def row(value: String) = toText(InternalRow(UTF8String.fromString(value))).copy()
    val lines = mutable.ArrayBuffer.empty[String]
    def batch(version: Long)(steps: StateStore => Unit): Unit = {
      val provider = open(spark, root, providerClass, hadoopConf)
      val store = provider.getStore(version)
      steps(store)
      lines += s"committed ${store.commit()}"
      provider.close()
    }
    def create(store: StateStore, family: Family): Unit = {
      store.createColFamilyIfAbsent(
        family.name, family.spec.keySchema, text, family.spec, family.multi, isInternal = false)
      val shown = store.iterator(family.name).map(_.key.getUTF8String(0).toString).toSeq.sorted
      val found = store.keyExists(row("a"), family.name)
      lines += s"${family.name} ${shown.mkString(",")} $found"
    }
    val made = newFamilies.filter(family => family.name == "values" || family.name == "lists")
    batch(0) { store =>
      made.foreach { family =>
        create(store, family)
        Seq("a", "b").foreach(key => store.put(row(key), row("old"), family.name))
      }
    }
    batch(1) { store =>
      made.foreach { family =>
        create(store, family)
        store.removeColFamilyIfExists(family.name)
        create(store, family)
        store.put(row("c"), row("new"), family.name)
      }
    }
    batch(2)(store => made.foreach(create(store, _)))
    lines.mkString("\n")
  }

  /** Makes and initialises a provider, and closes it without opening a store. */
  def initialise(spark: SparkSession, root: String, providerClass: String): Unit =
    open(spark, root, providerClass, newHadoopConf(spark)).close()

  private def newHadoopConf(spark: SparkSession): Configuration = {
    val hadoopConf = spark.sessionState.newHadoopConf()
    hadoopConf.set("sql.streaming.runId", UUID.randomUUID().toString)
    hadoopConf.set("spark.sql.streaming.internal.stateStore.partitions", "1")
    hadoopConf
  }

  private def open(
      spark: SparkSession,
      root: String,
      providerClass: String,
      hadoopConf: Configuration,
      checkpointFormat: Int = 1): StateStoreProvider = {
    val conf = spark.sessionState.conf.clone()
    conf.setConfString("spark.sql.streaming.stateStore.providerClass", providerClass)
    conf.setConfString(
      "spark.sql.streaming.stateStore.checkpointFormatVersion", checkpointFormat.toString)
    StateStoreProvider.createAndInit(
      StateStoreProviderId(StateStoreId(root, 0, 0), UUID.randomUUID()),
      text,
      text,
      NoPrefixKeyStateEncoderSpec(text),
      useColumnFamilies = true,
      StateStoreConf(conf),
      hadoopConf,
      useMultipleValuesPerKey = false,
      None)
  }

  private final class Run(seed: Long, newProvider: () => StateStoreProvider) {
    private val random = new Random(seed)
    private val families = newFamilies
    private val toValue = UnsafeProjection.create(text)
    private val toGroup = UnsafeProjection.create(text)
    private var provider = newProvider()
    private var version = 0L
    private var committed = Seq.empty[String]
    val lines = mutable.ArrayBuffer.empty[String]

    def close(): Unit = provider.close()

    def batch(number: Int): Unit = {
      if (random.nextInt(4) == 0) {
        provider.close()
        provider = newProvider()
      }
      // A store that is loaded empty commits the full state of the next version.
      val loadEmpty = version > 0 && random.nextInt(10) == 0
      val store =
        provider.getStore(version, None, forceSnapshotOnCommit = loadEmpty, loadEmpty = loadEmpty)
      families.foreach { family =>
        store.createColFamilyIfAbsent(
          family.name, family.spec.keySchema, text, family.spec, family.multi, isInternal = false)
      }
      lines += s"batch $number version ${store.version} loaded empty $loadEmpty"
      if (version > 0 && !loadEmpty && families.flatMap(allOf(store, _)) != committed) {
        lines += "stale"
      }
      (0 until random.nextInt(150)).foreach(_ => step(store))
      val shown = families.flatMap(allOf(store, _))
      lines ++= shown
      random.nextInt(6) match {
        case 0 =>
          store.abort()
          store.abort()
          lines += s"aborted ${store.hasCommitted}"
        case 1 if version > 0 && !loadEmpty =>
          // The batch fails elsewhere and is done again, from the same version. (Not where a
          // snapshot was forced: Spark's provider would go on with the snapshot of the first try.)
          lines += s"committed ${store.commit()} but again from $version"
        case _ =>
          version = store.commit()
          committed = shown
          lines += s"committed $version ${store.hasCommitted}"
      }
    }

    private def step(store: StateStore): Unit = {
      val family = families(random.nextInt(families.size))
      val key = randomKey(family)
      random.nextInt(12) match {
        case 0 | 1 => store.remove(key, family.name)
        case 2 if family.multi => store.merge(key, value(), family.name)
        case 3 if family.multi => store.mergeList(key, valueList(), family.name)
        case 4 if family.multi => store.putList(key, valueList(), family.name)
        case 5 =>
          lines += s"get ${show(store.get(key, family.name))} ${store.keyExists(key, family.name)}"
        case 6 if family.multi =>
          // Drained while the key changes under it.
          val values = store.valuesIterator(key, family.name)
          store.remove(key, family.name)
          store.merge(key, value(), family.name)
          lines += s"values ${values.map(show).mkString(",")}"
        case 6 if !family.multi =>
          val keys = Array.fill(3)(randomKey(family).copy())
          lines += s"multiGet ${store.multiGet(keys, family.name).map(show).mkString(",")}"
        case 7 if family.name == "maps" =>
          val prefix = toGroup(InternalRow(group())).copy()
          val found = store.prefixScan(prefix, family.name)
          store.put(randomKey(family), value(), family.name)
          lines += s"prefix ${sorted(family, found)}"
        case 7 if family.name == "byKey" =>
          val prefix = toGroup(InternalRow(group())).copy()
          val found = store.prefixScanWithMultiValues(prefix, family.name)
          store.merge(randomKey(family), value(), family.name)
          lines += s"by key ${found.map(shownPair(family, _)).mkString(" ")}"
        case 8 if family.name == "timers" =>
          val (from, until) = bounds(family)
          val found = store.rangeScan(from, until, family.name)
          store.remove(randomKey(family), family.name)
          lines += s"range ${found.map(p => showKey(family, p.key)).mkString(" ")}"
        case 9 if family.name == "timers" && random.nextInt(4) == 0 =>
          val (from, until) = bounds(family)
          for (low <- from; high <- until) store.deleteRange(low, high, family.name)
        case _ => store.put(key, value(), family.name)
      }
    }

    private def allOf(store: StateStore, family: Family): Seq[String] = {
      val found = if (family.multi) store.iteratorWithMultiValues(family.name)
      else store.iterator(family.name)
      val rows = found.map(shownPair(family, _)).toVector
      // Values of a key keep their order; keys have one only in the ordered families.
      val shown = if (family.name == "timers") rows else rows.sortBy(_.takeWhile(_ != '='))
      val times = Option.when(family.name == "byTime")(rows.map(_.takeWhile(_ != '/')))
      Seq(s"all ${family.name} ${shown.mkString(" ")}") ++ times.map(_.mkString("times ", " ", ""))
    }

    private def shownPair(family: Family, pair: UnsafeRowPair): String =
      s"${showKey(family, pair.key)}=${show(pair.value)}"

    private def bounds(family: Family): (Option[UnsafeRow], Option[UnsafeRow]) = {
      val low = random.nextInt(40).toLong - 20
      def bound(t: Long) = Some(family.toKey(InternalRow(t, UTF8String.fromString(""))).copy())
      (if (random.nextInt(5) == 0) None else bound(low), bound(low + random.nextInt(20)))
    }

    private def sorted(family: Family, found: Iterator[UnsafeRowPair]): String =
      found.map(shownPair(family, _)).toVector.sorted.mkString(" ")

    private def randomKey(family: Family): UnsafeRow = {
      val name = UTF8String.fromString("k" + random.nextInt(30))
      family.name match {
        case "maps" => family.toKey(InternalRow(group(), name))
        case "timers" => family.toKey(InternalRow(random.nextInt(60).toLong - 30, name))
        case "byTime" | "byKey" => family.toKey(InternalRow(group(), random.nextInt(8).toLong - 4))
        case _ => family.toKey(InternalRow(name))
      }
    }

    private def group() = UTF8String.fromString("g" + random.nextInt(5))

    private def value(): UnsafeRow = {
      val size = if (random.nextInt(30) == 0) 2000 else random.nextInt(12)
      toValue(InternalRow(UTF8String.fromString("v" + "x" * size + random.nextInt(1000))))
    }

    private def valueList(): Array[UnsafeRow] = Array.fill(1 + random.nextInt(3))(value().copy())

    private def show(row: UnsafeRow): String =
      if (row == null) "-" else row.getUTF8String(0).toString

    private def showKey(family: Family, key: UnsafeRow): String = family.name match {
      case "maps" => s"${key.getUTF8String(0)}/${key.getUTF8String(1)}"
      case "timers" => s"${key.getLong(0)}/${key.getUTF8String(1)}"
      case "byTime" | "byKey" => s"${key.getLong(1)}/${key.getUTF8String(0)}"
      case _ => key.getUTF8String(0).toString
    }
  }
}
