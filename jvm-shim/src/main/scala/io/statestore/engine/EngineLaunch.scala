package io.statestore.engine

import java.io.File
import java.nio.charset.StandardCharsets.UTF_8
import java.nio.file.Files

import scala.jdk.CollectionConverters._

import io.statestore.Resources

import org.apache.spark.SparkContext
import org.apache.spark.sql.execution.streaming.state.StateStoreInternals

/**
 * How an engine process is started: which Python, which package, which environment.
 *
 * @param python the interpreter's path or name
 * @param pythonFrom where that came from, for error texts
 * @param pythonPath entries that go before the JVM's own PYTHONPATH
 * @param requirements the packages that the Python must have, as pip takes them
 * @param arguments what the interpreter runs
 */
private[engine] final case class EngineLaunch(
    python: String,
    pythonFrom: String,
    pythonPath: Seq[String],
    requirements: String,
    arguments: Seq[String] = Seq("-m", "statestore.engine")) {

  def command: Seq[String] = python +: arguments

  /** What to do when no engine starts. */
  def fix: String =
    "set spark.pyspark.python to a Python 3.11 or later in which " +
      s"`pip install $requirements` has been run, on every executor"

  /** A process not yet started. Its token is not in the command nor in the environment. */
  def processBuilder(): ProcessBuilder = {
    val builder = new ProcessBuilder(command.asJava)
    val environment = builder.environment()
    val inherited = Option(environment.get("PYTHONPATH")).toSeq
    environment.put("PYTHONPATH", StateStoreInternals.mergePythonPaths(pythonPath ++ inherited))
    // `-m` would otherwise import a directory named statestore in the working directory first.
    environment.put("PYTHONSAFEPATH", "1")
    // Arrow's own default keeps several times of what a merge needs.
    environment.putIfAbsent("ARROW_DEFAULT_MEMORY_POOL", "system")
    builder
  }
}

private[engine] object EngineLaunch {
  private val PythonConf = "spark.pyspark.python"
  private val PythonVariable = "PYSPARK_PYTHON"
  private val EmbeddedRequirements = "pyarrow numpy google-crc32c"
  private val PackageRoot = "/statestore-python/"

  /**
   * Choose the Python and lay out the package.
   *
   * @param enginePackage `embedded` to extract the jar's copy into `scratch`, `installed` to leave
   *        the package to the Python's own environment
   */
  def prepare(enginePackage: String, scratch: File): EngineLaunch = {
    val (python, pythonFrom) = choosePython()
    val packagePath = enginePackage match {
      case "embedded" => Seq(extractPackage(new File(scratch, "python")).getPath)
      case _ => Nil
    }
    val requirements =
      if (packagePath.isEmpty) s"statestore==${Resources.version}" else EmbeddedRequirements
    EngineLaunch(python, pythonFrom, packagePath ++ py4jPath, requirements)
  }

  private def choosePython(): (String, String) =
    StateStoreInternals.sparkConf.getOption(PythonConf).map(_ -> PythonConf)
      .orElse(sys.env.get(PythonVariable).filter(_.nonEmpty).map(_ -> PythonVariable))
      .orElse(sparkHome.flatMap(environmentPython).map(_ -> "the environment of pyspark"))
      .getOrElse("python3" -> "the PATH")

  /** Python of the environment in which `home` is `lib/pythonX.Y/site-packages/pyspark`. */
  private def environmentPython(home: File): Option[String] =
    Iterator.iterate(home)(_.getParentFile).takeWhile(_ != null).take(5).toSeq match {
      case Seq(_, sitePackages, _, lib, environment)
          if sitePackages.getName.endsWith("-packages") && lib.getName.startsWith("lib") =>
        Some(new File(environment, "bin/python3")).filter(_.canExecute).map(_.getPath)
      case _ => None
    }

  private def py4jPath: Seq[String] =
    sparkHome.map(new File(_, s"python/lib/${StateStoreInternals.py4jArchive}"))
      .filter(_.isFile).map(_.getPath).toSeq

  /** Directory of the Spark whose classes this JVM runs: SPARK_HOME, or else two above its jars. */
  private def sparkHome: Option[File] =
    sys.env.get("SPARK_HOME").filter(_.nonEmpty).map(new File(_)).orElse(
      for {
        source <- Option(classOf[SparkContext].getProtectionDomain.getCodeSource)
        jars <- Option(new File(source.getLocation.getPath).getParentFile)
        home <- Option(jars.getParentFile) if jars.getName == "jars"
      } yield home)

  private def extractPackage(directory: File): File = {
    val index = new String(Resources.bytes(PackageRoot + "INDEX"), UTF_8)
    index.linesIterator.map(_.trim).filter(_.nonEmpty).foreach { path =>
      val file = directory.toPath.resolve(path)
      Files.createDirectories(file.getParent)
      Files.write(file, Resources.bytes(PackageRoot + path))
    }
    directory
  }
}
