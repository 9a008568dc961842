package conformance

import org.apache.spark.SparkConf
import org.apache.spark.sql.catalyst.SQLConfHelper
import org.apache.spark.sql.internal.SQLConf
import org.apache.spark.sql.test.SharedSparkSession

/** The provider that is asked for. It is a system property, which every new SparkConf has. */
object Asked {
  private val SparksKey = SQLConf.STATE_STORE_PROVIDER_CLASS.key
  private val Sparks = """org\.apache\.spark\.sql\..*StateStoreProvider"""
  private val Extensions = "spark.sql.extensions"

  private var asked: Option[(String, String)] = None

  /** Key and class name; or none, for what Spark and its suites choose. */
  def choose(pair: Option[(String, String)], extensions: String): Unit = {
    asked.foreach { case (key, _) => System.clearProperty(key) }
    asked = pair
    asked.foreach { case (key, name) => System.setProperty(key, name) }
    // Spark's test session loads no extension that only META-INF/services names.
    if (asked.isEmpty) System.clearProperty(Extensions)
    else System.setProperty(Extensions, extensions)
  }

  def className: Option[String] = asked.map(_._2)

  /** A setting, or what is asked for where it names a provider of Spark's. */
  def instead(setting: (String, String)): (String, String) = setting match {
    case (SparksKey, name) if name.matches(Sparks) => asked.getOrElse(setting)
    case other => other
  }
}

/** A suite of Spark's whose every choice of a provider of Spark's becomes the one asked for. */
trait Redirected extends SharedSparkSession with SQLConfHelper {
  private val key = SQLConf.STATE_STORE_PROVIDER_CLASS.key

  protected override def withSQLConf[T](pairs: (String, String)*)(f: => T): T =
    super.withSQLConf(pairs.map(Asked.instead): _*)(f)

  protected override def sparkConf: SparkConf = {
    val conf = super.sparkConf
    redirect(conf.getOption(key))(conf.remove(_), conf.set(_, _))
    conf
  }

  override def beforeAll(): Unit = {
    super.beforeAll()
    redirectSession()
  }

  override def beforeEach(): Unit = {
    super.beforeEach()
    redirectSession()
  }

  private def redirectSession(): Unit =
    redirect(spark.conf.getOption(key))(spark.conf.unset(_), spark.conf.set(_, _))

  private def redirect(
      chosen: Option[String])(unset: String => Unit, set: (String, String) => Unit): Unit =
    chosen.foreach { name =>
      unset(key)
      Function.tupled(set)(Asked.instead(key -> name))
    }
}
