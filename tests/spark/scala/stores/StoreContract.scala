package io.statestore.testing

import java.util.UUID
import java.util.concurrent.atomic.AtomicBoolean

import scala.collection.mutable
import scala.util.{Failure, Success, Try}

import org.apache.hadoop.conf.Configuration
import org.apache.spark.SparkThrowable
import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions.{BoundReference, UnsafeProjection, UnsafeRow}
import org.apache.spark.sql.catalyst.plans.physical.HashPartitioning
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
  private[testing] val text = new StructType().add("s", StringType)
  private val pair = new StructType().add("g", StringType).add("s", StringType)
  private[testing] val time = new StructType().add("t", LongType)
  private val timed = time.add("s", StringType)
  private val atTime = new StructType().add("s", StringType).add("__event_time", LongType)

  private[testing] final case class Family(
      name: String,
      spec: KeyStateEncoderSpec,
      multi: Boolean) {
    val toKey: UnsafeProjection = UnsafeProjection.create(spec.keySchema)

    def createIn(store: StateStore): Unit = store.createColFamilyIfAbsent(
      name, spec.keySchema, text, spec, multi, isInternal = false)
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
   *
   * @param elsewhere another path of the directory `root`, under which every other provider finds
   *        the store: what is local to the one does not help the other
   * @param singleValues only column families of one value per key: the rocksdb backend's commits
   *        are SSTs then
   */
  def transcript(
      spark: SparkSession,
      root: String,
      elsewhere: String,
      providerClass: String,
      seed: Long,
      batches: Int,
      singleValues: Boolean): String = {
    val hadoopConf = newHadoopConf(spark)
    val places = Iterator.continually(Seq(root, elsewhere)).flatten
    val families = newFamilies.filterNot(singleValues && _.multi)
    def newProvider() = open(spark, places.next(), providerClass, hadoopConf)
    val run = new RandomCalls(seed, families, newProvider _)
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
    val row = newTextRow
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
      store.metrics // asked for by Spark after each commit; then the view is at the new version
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
    val row = newTextRow
    val lines = mutable.ArrayBuffer.empty[String]
    def batch(version: Long)(steps: StateStore => Unit): Unit = {
      val provider = open(spark, root, providerClass, hadoopConf)
      val store = provider.getStore(version)
      steps(store)
      lines += s"committed ${store.commit()}"
      provider.close()
    }
    def create(store: StateStore, family: Family): Unit = {
      family.createIn(store)
      val shown = store.iterator(family.name).map(_.key.getUTF8String(0).toString).toSeq.sorted
      val found = store.keyExists(row("a"), family.name)
      lines += s"${family.name} ${shown.mkString(",")} $found"
    }
    val made = unordered
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

  /**
   * State partition 0 of 4 is given a row of its own, then one of another state partition, and
   * after a restart one of its own again. Returns what each commit says: `statestoreNotRescalable`.
   */
  def misplacedRow(spark: SparkSession, root: String, providerClass: String): String = {
    val hadoopConf = newHadoopConf(spark, numPartitions = 4)
    val row = newTextRow
    val key = BoundReference(0, StringType, nullable = true)
    val partition = HashPartitioning(Seq(key), 4).partitionIdExpression
    val (own, others) = (1 to 100).map(n => row(s"k$n")).partition(partition.eval(_) == 0)
    def commit(provider: StateStoreProvider, version: Long, key: UnsafeRow): Long = {
      val store = provider.getStore(version)
      store.put(key, row("v"))
      store.commit()
      store.metrics.customMetrics
        .collectFirst { case (metric, n) if metric.name == "statestoreNotRescalable" => n }
        .get
    }
    val before = open(spark, root, providerClass, hadoopConf)
    val marks = Seq(commit(before, 0, own(0)), commit(before, 1, others(0)))
    before.close()
    val after = open(spark, root, providerClass, hadoopConf)
    val mark = commit(after, 2, own(1))
    after.close()
    (marks :+ mark).mkString(" ")
  }

  /**
   * A provider is closed while a store of it, and a scan, are open. Returns what the store does
   * then, and what the next provider shows.
   */
  def closedUnderATask(spark: SparkSession, root: String, providerClass: String): String = {
    val hadoopConf = newHadoopConf(spark)
    def newProvider() = open(spark, root, providerClass, hadoopConf)
    val row = newTextRow
    val first = newProvider()
    val base = first.getStore(0)
    Seq("a", "b").foreach(key => base.put(row(key), row("base")))
    base.commit()
    first.close()

    val provider = newProvider()
    val store = provider.getStore(1)
    store.put(row("b"), row("own"))
    val scan = store.iterator()
    provider.close()
    val lines = Seq(
      s"scan ${shown(scan)}",
      s"get ${store.get(row("a")).getUTF8String(0)} ${store.keyExists(row("c"))}",
      s"iterator ${shown(store.iterator())}",
      s"put ${refusal(store.put(row("a"), row("late")))}",
      s"remove ${refusal(store.remove(row("a")))}",
      s"commit ${refusal(store.commit())}",
      s"getStore ${refusal(provider.getStore(1))}")
    store.abort()

    val next = newProvider()
    val found = next.getStore(1)
    val line = s"next ${shown(found.iterator())}"
    found.abort()
    next.close()
    (lines :+ line).mkString("\n")
  }

  /** The rows of a version, each as key=value, by a provider that has loaded nothing before. */
  def rowsOf(spark: SparkSession, root: String, providerClass: String, version: Long): String = {
    val provider = open(spark, root, providerClass, newHadoopConf(spark), useColumnFamilies = false)
    val store = provider.getStore(version)
    val rows = shown(store.iterator())
    store.abort()
    provider.close()
    rows
  }

  /** Commits the next version: of words, each a key with a value, or a key to be removed. */
  def commitRows(
      spark: SparkSession,
      root: String,
      providerClass: String,
      version: Long,
      words: String): Unit = {
    val provider = open(spark, root, providerClass, newHadoopConf(spark), useColumnFamilies = false)
    val row = newTextRow
    val store = provider.getStore(version)
    words.split(" ").foreach { word =>
      val key = row(word.takeWhile(_ != '='))
      if (word.contains('=')) store.put(key, row(word.dropWhile(_ != '=').tail))
      else store.remove(key)
    }
    store.commit()
    provider.close()
  }

  /**
   * Stores of one provider that are open side by side, one of them read by another thread. Returns
   * what each shows after what the others did, a line a step.
   */
  def storesSideBySide(spark: SparkSession, root: String, providerClass: String): String = {
    val provider = open(spark, root, providerClass, newHadoopConf(spark))
    val row = newTextRow
    val lines = mutable.ArrayBuffer.empty[String]
    def commit(version: Long, value: String): Unit = {
      val store = provider.getStore(version)
      store.put(row("a"), row(value))
      lines += s"committed ${store.commit()}"
      store.metrics // brings the view to the new version
      store.abort() // as Spark does when the task ends otherwise
      val id = store.getStateStoreCheckpointInfo()
      lines += s"then aborted ${store.hasCommitted} ${id.batchVersion}"
    }
    commit(0, "one")
    val ofOne = provider.getReadStore(1, None)
    val (found, isDone) = (mutable.HashSet.empty[String], new AtomicBoolean)
    val reader = new Thread(() => do found += shown(ofOne.iterator()) while (!isDone.get()))
    reader.start()
    (1 to 20).foreach(number => commit(number, s"v$number"))
    isDone.set(true)
    reader.join()
    lines += s"read meanwhile ${found.mkString(", ")}"
    ofOne.release()

    commit(21, "now")
    val ofNow = provider.getReadStore(22, None)
    val before = provider.getStore(21)
    lines += s"the version before ${shown(before.iterator())}, this one ${shown(ofNow.iterator())}"
    before.abort()
    lines += s"still ${shown(ofNow.iterator())}"

    def upgraded(version: Long): StateStore =
      provider.upgradeReadStoreToWriteStore(ofNow, version, None, forceSnapshotOnCommit = false)
    val other = upgraded(21)
    lines += s"of another version ${other.version} ${shown(other.iterator())}"
    other.abort()
    ofNow.release()
    val anew = upgraded(22)
    anew.put(row("a"), row("last"))
    lines += s"of one that has ended ${shown(anew.iterator())} ${anew.commit()}"
    provider.close()
    lines.mkString("\n")
  }

  /** What a store reads, for which the engine has to open something, behind its provider's end. */
  def readBehindTheEnd(spark: SparkSession, root: String, providerClass: String): String = {
    val provider = open(spark, root, providerClass, newHadoopConf(spark))
    val row = newTextRow
    val base = provider.getStore(0)
    base.put(row("a"), row("base"))
    base.commit()
    val store = provider.getStore(1)
    provider.close()
    val found = shown(store.iterator())
    store.abort()
    found
  }

  /** The change feed of two batches that write every key once, by column family, batch and key. */
  def changes(spark: SparkSession, root: String, providerClass: String): String = {
    val provider = open(spark, root, providerClass, newHadoopConf(spark))
    val row = newTextRow
    def batch(version: Long)(steps: StateStore => Unit): Unit = {
      val store = provider.getStore(version)
      unordered.foreach(_.createIn(store))
      steps(store)
      store.commit()
    }
    batch(0) { store =>
      Seq("a", "b").foreach(key => store.put(row(key), row("1"), "values"))
      store.putList(row("a"), Array(row("1"), row("2")), "lists")
      store.put(row("b"), row("1"), "lists")
    }
    batch(1) { store =>
      store.remove(row("a"), "values")
      store.put(row("b"), row("2"), "values")
      store.remove(row("a"), "lists")
      store.mergeList(row("b"), Array(row("2"), row("3")), "lists")
      store.putList(row("c"), Array(row("4"), row("5")), "lists")
    }
    val lines = unordered.flatMap { family =>
      val reader = provider.asInstanceOf[SupportsFineGrainedReplay]
        .getStateStoreChangeDataReader(1, 2, Some(family.name), None)
      val found = reader.map { case (change, key, value, batchId) =>
        val text = Option(value).fold("-")(_.getUTF8String(0).toString)
        (s"${family.name} $batchId ${key.getUTF8String(0)}", s"$change $text")
      }
      // Several of a key keep their order.
      found.toVector.sortBy(_._1).map { case (key, change) => s"$key $change" }
    }
    provider.close()
    lines.mkString("\n")
  }

  /**
   * A column family is removed, and the next batch makes one of another name and other values. The
   * change feed of each, from the first batch on and for the second also from the third on.
   */
  def changesOfRemoved(spark: SparkSession, root: String, providerClass: String): String = {
    val provider = open(spark, root, providerClass, newHadoopConf(spark))
    val row = newTextRow
    val number = UnsafeProjection.create(time)(InternalRow(7L)).copy()
    val spec = NoPrefixKeyStateEncoderSpec(text)
    def batch(version: Long)(steps: StateStore => Unit): Unit = {
      val store = provider.getStore(version)
      steps(store)
      store.commit()
    }
    batch(0) { store =>
      Family("old", spec, multi = false).createIn(store)
      Seq("a", "b").foreach(key => store.put(row(key), row("a long text, not a number"), "old"))
    }
    batch(1)(_.removeColFamilyIfExists("old"))
    batch(2) { store =>
      store.createColFamilyIfAbsent("new", text, time, spec, false, isInternal = false)
      store.put(row("b"), number, "new")
    }
    batch(3)(_.remove(row("b"), "new"))
    val lines = for ((name, first) <- Seq("new" -> 1L, "new" -> 3L, "old" -> 1L)) yield {
      val reader = provider.asInstanceOf[SupportsFineGrainedReplay]
        .getStateStoreChangeDataReader(first, 4, Some(name), None)
      val found = reader.map { case (change, key, value, batchId) =>
        val shown = Option(value).fold("-")(_.getLong(0).toString)
        s"$batchId ${key.getUTF8String(0)} $change $shown"
      }
      s"$name $first: ${found.mkString(", ")}"
    }
    provider.close()
    lines.mkString("\n")
  }

  /** How a store outside of a task is refused, by its operator and state partition. */
  def storesThatAreNot(spark: SparkSession, root: String, providerClass: String): String = {
    val hadoopConf = newHadoopConf(spark)
    hadoopConf.unset("spark.sql.streaming.internal.stateStore.partitions")
    Seq((0L, 0), (0L, 1), (0L, -1), (-1L, 0)).map { case (operator, partition) =>
      val store = StateStoreId(root, operator, partition)
      val provider = open(spark, store, providerClass, hadoopConf, 1, useColumnFamilies = false)
      val shown = Try(provider.getStore(0).abort()) match {
        case Success(_) => "opened"
        case Failure(e) => s"${e.getClass.getSimpleName} ${e.getMessage}"
      }
      provider.close()
      s"$operator $partition $shown"
    }.mkString("\n")
  }

  /** Calls that a store does not take, and how it refuses each; then that it goes on. */
  def refusals(spark: SparkSession, root: String, providerClass: String): String = {
    val provider = open(spark, root, providerClass, newHadoopConf(spark))
    val store = provider.getStore(0)
    newFamilies.foreach(_.createIn(store))
    val key = newTextRow("k")
    val pairKey = newFamilies.find(_.name == "maps").get
      .toKey(InternalRow(UTF8String.fromString("g"), UTF8String.fromString("k")))
    def create(name: String): Unit =
      Family(name, NoPrefixKeyStateEncoderSpec(text), multi = false).createIn(store)
    val calls = Seq[(String, () => Any)](
      "merge into one value" -> (() => store.merge(key, key, "values")),
      "mergeList into one value" -> (() => store.mergeList(key, Array(key), "values")),
      "putList of one value" -> (() => store.putList(key, Array(key), "values")),
      "valuesIterator of one value" -> (() => store.valuesIterator(key, "values")),
      "prefixScan without prefix" -> (() => store.prefixScan(key, "values")),
      "prefixScanWithMultiValues by time" -> (() => store.prefixScanWithMultiValues(key, "byTime")),
      "prefixScanWithMultiValues of one value" ->
        (() => store.prefixScanWithMultiValues(key, "maps")),
      "rangeScan without range" -> (() => store.rangeScan(None, None, "maps")),
      "rangeScanWithMultiValues without range" ->
        (() => store.rangeScanWithMultiValues(None, None, "lists")),
      "rangeScanWithMultiValues of one value" ->
        (() => store.rangeScanWithMultiValues(None, None, "timers")),
      "deleteRange without range" -> (() => store.deleteRange(pairKey, pairKey, "maps")),
      "get from an unknown family" -> (() => store.get(key, "unknown")),
      "put into an unknown family" -> (() => store.put(key, key, "unknown")),
      "iterator of an unknown family" -> (() => store.iterator("unknown")),
      "put of a null key" -> (() => store.put(null, key, "values")),
      "put of a null value" -> (() => store.put(key, null, "values")),
      "merge of a null value" -> (() => store.merge(key, null, "lists")),
      "create a family without name" -> (() => create("")),
      "create a family of blanks" -> (() => create(" values")),
      "create the default family" -> (() => create(StateStore.DEFAULT_COL_FAMILY_NAME)),
      "create a reserved family" -> (() => create("$reserved")),
      "remove the default family" ->
        (() => store.removeColFamilyIfExists(StateStore.DEFAULT_COL_FAMILY_NAME)),
      "commit" -> (() => store.commit()))
    val lines = calls.map { case (name, call) => s"$name: ${refusal(call())}" }
    provider.close()
    lines.mkString("\n")
  }

  /** The condition, and the text, with which version 7 of a store is refused that has one. */
  def missingVersion(spark: SparkSession, root: String, providerClass: String): String = {
    val conf = newHadoopConf(spark)
    val provider = open(spark, root, providerClass, conf, useColumnFamilies = false)
    provider.getStore(0).commit()
    val lines = Try(provider.getStore(7)) match {
      case Failure(e: SparkThrowable) => Seq(String.valueOf(e.getCondition), e.getMessage)
      case other => Seq(other.toString)
    }
    provider.close()
    lines.mkString("\n")
  }

  /** What a store that was opened to be read says to calls that write. */
  def writesToReadStore(spark: SparkSession, root: String, providerClass: String): String = {
    val provider = open(spark, root, providerClass, newHadoopConf(spark))
    val store = provider.getReadStore(0).asInstanceOf[StateStore]
    val key = newTextRow("k")
    val lines = Seq(
      s"put: ${refusal(store.put(key, key))}",
      s"remove: ${refusal(store.remove(key))}",
      s"commit: ${refusal(store.commit())}")
    store.release()
    provider.close()
    lines.mkString("\n")
  }

  /** How a call is refused: the condition of Spark's error, or the class of another one. */
  private def refusal(call: => Any): String = Try(call) match {
    case Success(_) => "done"
    case Failure(e: SparkThrowable) if e.getCondition != null => e.getCondition
    case Failure(e) => e.getClass.getSimpleName
  }

  private def unordered: Seq[Family] =
    newFamilies.filter(_.spec.isInstanceOf[NoPrefixKeyStateEncoderSpec])

  private def newTextRow: String => UnsafeRow = {
    val toText = UnsafeProjection.create(text)
    value => toText(InternalRow(UTF8String.fromString(value))).copy()
  }

  private def shown(pairs: Iterator[UnsafeRowPair]): String = pairs
    .map(pair => s"${pair.key.getUTF8String(0)}=${pair.value.getUTF8String(0)}")
    .toSeq.sorted.mkString(" ")

  /** Makes and initialises a provider, and closes it without opening a store. */
  def initialise(spark: SparkSession, root: String, providerClass: String): Unit =
    open(spark, root, providerClass, newHadoopConf(spark)).close()

  private def newHadoopConf(spark: SparkSession, numPartitions: Int = 1): Configuration = {
    val hadoopConf = spark.sessionState.newHadoopConf()
    hadoopConf.set("sql.streaming.runId", UUID.randomUUID().toString)
    hadoopConf.set(
      "spark.sql.streaming.internal.stateStore.partitions", numPartitions.toString)
    hadoopConf
  }

  private def open(
      spark: SparkSession,
      root: String,
      providerClass: String,
      hadoopConf: Configuration,
      checkpointFormat: Int = 1,
      useColumnFamilies: Boolean = true): StateStoreProvider = open(
    spark, StateStoreId(root, 0, 0), providerClass, hadoopConf, checkpointFormat, useColumnFamilies)

  private def open(
      spark: SparkSession,
      store: StateStoreId,
      providerClass: String,
      hadoopConf: Configuration,
      checkpointFormat: Int,
      useColumnFamilies: Boolean): StateStoreProvider = {
    val conf = spark.sessionState.conf.clone()
    conf.setConfString("spark.sql.streaming.stateStore.providerClass", providerClass)
    conf.setConfString(
      "spark.sql.streaming.stateStore.checkpointFormatVersion", checkpointFormat.toString)
    StateStoreProvider.createAndInit(
      StateStoreProviderId(store, UUID.randomUUID()),
      text,
      text,
      NoPrefixKeyStateEncoderSpec(text),
      useColumnFamilies,
      StateStoreConf(conf),
      hadoopConf,
      useMultipleValuesPerKey = false,
      None)
  }
}
