package conformance

import java.io.{FileWriter, PrintWriter}
import java.nio.file.{Files, Path}

import scala.jdk.CollectionConverters._

import com.fasterxml.jackson.databind.{JsonNode, ObjectMapper}
import org.scalatest.{Args, DynaTags, Filter, Reporter, Suite}
import org.scalatest.events._

/**
 * Runs a suite on one provider after the other, as a file of JSON says, and appends a line of JSON
 * a test to another: provider, test, outcome, ms, message. At the end of a provider it has no test.
 *
 * A test that takes too long is written down as hung; one that ends its suite, as failed. Each ends
 * the process with status 3: the rest is for another.
 */
object RunSuite {
  private val HungAfterMs = 8 * 60 * 1000
  private val GoOn = 3
  private val LeftOut = "conformance.LeftOut"
  private val mapper = new ObjectMapper

  def main(args: Array[String]): Unit = {
    val plan = mapper.readTree(Files.readString(Path.of(args(0))))
    val results = new PrintWriter(new FileWriter(args(1), true), true)
    val name = plan.get("suite").asText
    val leftOut = plan.get("left_out").asText.r
    for (run <- plan.get("runs").asScala) {
      val lines = new Lines(run.get("provider").asText, run.get("messages").asBoolean, results)
      val pair = Option(run.get("class").textValue).map(run.get("key").asText -> _)
      Asked.choose(pair, plan.get("extensions").asText)
      try {
        val suite = Class.forName(name).getDeclaredConstructor().newInstance().asInstanceOf[Suite]
        val done = names(run.get("done")).toSet
        val only = Option(run.get("only")).filterNot(_.isNull).map(names(_).toSet)
        val skipped = suite.testNames.filter { test =>
          done(test) || leftOut.findFirstIn(test).nonEmpty || only.exists(!_.contains(test))
        }
        val tags = DynaTags(Map.empty, Map(suite.suiteId -> skipped.map(_ -> Set(LeftOut)).toMap))
        val filter = Filter(None, Set(LeftOut, "org.scalatest.Ignore"), false, tags)
        suite.run(None, Args(lines, filter = filter))
        lines.write("", "ended", 0, "")
      } catch {
        case e: Throwable => lines.died(e)
      }
    }
    // Engines, listeners and pools of Spark may still have threads that are no daemons.
    System.exit(0)
  }

  private def names(list: JsonNode): Seq[String] = list.asScala.map(_.asText).toSeq

  private class Lines(provider: String, messages: Boolean, results: PrintWriter)
      extends Reporter {
    @volatile private var running: Option[(String, Long)] = None

    private val watchdog = new Thread(() =>
      while (true) {
        Thread.sleep(1000)
        running.foreach { case (test, started) =>
          if (System.currentTimeMillis - started > HungAfterMs) {
            write(test, "hung", HungAfterMs, "")
            Runtime.getRuntime.halt(GoOn)
          }
        }
      })
    watchdog.setDaemon(true)
    watchdog.start()

    def apply(event: Event): Unit = event match {
      case e: TestStarting => running = Some(e.testName -> System.currentTimeMillis)
      case e: TestSucceeded => write(e.testName, "passed", e.duration.getOrElse(0), "")
      case e: TestFailed => write(e.testName, "failed", e.duration.getOrElse(0), said(e))
      case e: TestCanceled => write(e.testName, "canceled", e.duration.getOrElse(0), e.message)
      case _ => ()
    }

    def died(e: Throwable): Unit = running match {
      case Some((test, started)) =>
        write(test, "failed", System.currentTimeMillis - started, e.toString)
        Runtime.getRuntime.halt(GoOn)
      case None => write("", "aborted", 0, e.toString)
    }

    /** The message, and what caused it. */
    private def said(e: TestFailed): String = {
      val causes = Iterator.iterate(e.throwable.flatMap(t => Option(t.getCause)))(
        _.flatMap(t => Option(t.getCause))).takeWhile(_.nonEmpty).flatten.take(5)
      (e.message +: causes.map(_.toString).toSeq).distinct.map(_.take(500)).mkString(" / ")
    }

    def write(test: String, outcome: String, ms: Long, message: String): Unit = {
      running = None
      val line = mapper.createObjectNode().put("provider", provider).put("test", test)
      val text = message.replaceAll("\\s+", " ").replace(sys.props("java.io.tmpdir"), "TMP")
      val said = if (messages) text else ""
      line.put("outcome", outcome).put("ms", ms).put("message", said)
      results.println(line)
    }
  }
}
