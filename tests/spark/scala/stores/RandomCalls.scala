package io.statestore.testing

import scala.collection.mutable
import scala.util.Random

import io.statestore.testing.StoreContract.{text, time, Family}
import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions.{UnsafeProjection, UnsafeRow}
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.unsafe.types.UTF8String

/** Batches of random calls to one store, the same for the same seed; `lines` has their results. */
private[testing] final class RandomCalls(
    seed: Long,
    families: Seq[Family],
    newProvider: () => StateStoreProvider) {
  private val random = new Random(seed)
  private val toValue = UnsafeProjection.create(text)
  private val toGroup = UnsafeProjection.create(text)
  private val toTime = UnsafeProjection.create(time)
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
    families.foreach(_.createIn(store))
    lines += s"batch $number version ${store.version} loaded empty $loadEmpty"
    lines += s"families ${store.allColumnFamilyNames.toSeq.sorted.mkString(" ")}"
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
      case 7 if family.name == "timers" =>
        val found = store.prefixScan(toTime(InternalRow(randomTime(60))).copy(), family.name)
        store.put(randomKey(family), value(), family.name)
        lines += s"at a time ${found.map(shownPair(family, _)).mkString(" ")}"
      case 8 if family.name == "byTime" || family.name == "byKey" =>
        val (from, until) = bounds(family)
        val found = store.rangeScanWithMultiValues(from, until, family.name)
        store.merge(randomKey(family), value(), family.name)
        lines += s"values in range ${found.map(shownPair(family, _)).mkString(" ")}"
      case 8 if family.name == "timers" =>
        val (from, until) = bounds(family)
        val found = store.rangeScan(from, until, family.name)
        store.remove(randomKey(family), family.name)
        lines += s"range ${found.map(p => showKey(family, p.key)).mkString(" ")}"
      case 9 if family.name == "timers" && random.nextInt(4) == 0 =>
        val (from, until) = bounds(family)
        for (low <- from; high <- until) store.deleteRange(low, high, family.name)
      case 10 if family.name == "timers" => reuse(store, family)
      case _ => store.put(key, value(), family.name)
    }
  }

  /** Goes through the rows as Spark 4.3 does in real-time mode, with writes in between. */
  private def reuse(store: StateStore, family: Family): Unit =
    store.getClass.getMethods.find(_.getName == "reusableIterator").foreach { method =>
      val found = method.invoke(store, family.name).asInstanceOf[Iterator[UnsafeRowPair]]
      def shown() = {
        store.put(randomKey(family), value(), family.name)
        store.remove(randomKey(family), family.name)
        val rows = Vector.newBuilder[String]
        (0 until random.nextInt(8)).foreach { _ =>
          if (found.hasNext) rows += shownPair(family, found.next())
        }
        rows.result().mkString(" ")
      }
      lines += s"from the first ${shown()}"
      (0 until random.nextInt(4)).foreach { _ =>
        Class.forName("org.apache.spark.sql.execution.streaming.state.ReusableIterator")
          .getMethod("refreshAndSeekToPrefix", classOf[UnsafeRow])
          .invoke(found, toTime(InternalRow(randomTime(60))).copy())
        lines += s"from a time on ${shown()}"
      }
      found.asInstanceOf[AutoCloseable].close()
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
    val key = group()
    def bound(t: Long) = Some(family.toKey(
      if (family.name == "timers") InternalRow(t, UTF8String.fromString(""))
      else InternalRow(key, t)).copy())
    val low = if (family.name == "timers") random.nextInt(40).toLong - 20 else randomTime(8)
    (if (random.nextInt(5) == 0) None else bound(low), bound(low + random.nextInt(20)))
  }

  private def sorted(family: Family, found: Iterator[UnsafeRowPair]): String =
    found.map(shownPair(family, _)).toVector.sorted.mkString(" ")

  private def randomKey(family: Family): UnsafeRow = {
    val name = UTF8String.fromString("k" + random.nextInt(30))
    family.name match {
      case "maps" => family.toKey(InternalRow(group(), name))
      case "timers" => family.toKey(InternalRow(randomTime(60), name))
      case "byTime" | "byKey" => family.toKey(InternalRow(group(), randomTime(8)))
      case _ => family.toKey(InternalRow(name))
    }
  }

  private def randomTime(num: Int): Long = random.nextInt(num).toLong - num / 2

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
