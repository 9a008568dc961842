package io.statestore.engine

import java.io.File
import java.nio.charset.StandardCharsets.UTF_8
import java.nio.file.Files
import java.nio.file.StandardCopyOption.ATOMIC_MOVE

import scala.jdk.CollectionConverters._

import io.statestore.{Resources, ShimErrors}

import org.apache.spark.{SparkContext, SparkEnv}
import org.apache.spark.sql.execution.streaming.state.StateStoreInternals

/**
 * How an engine process is started: which Python, which package, which environment.
 *
 * @param python the interpreter's path or name
 * @param pythonFrom where that came from, for error texts
 * @param pythonPath entries that go before those that the JVM's own environment names
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
      s"`pip install $requirements` has been run, on every executor; where the driver has " +
      "another Python, set spark.pyspark.driver.python"

  /** What to do when the machine starts no process: its limits, or the Python, by its error. */
  def fixOf(error: String): String =
    EngineLaunch.ErrorNumber.findFirstMatchIn(error).map(_.group(1)) match {
      case Some("24") => "on the machine of the executor raise the limit of open files (ulimit -n)"
      case Some("11") =>
        "on the machine of the executor raise the limit of processes and threads: that of the " +
          "container (pids) or of the user (ulimit -u)"
      case Some("12") => "give executors more memory (spark.executor.memoryOverhead)"
      case _ => fix
    }

  /** A process not yet started. Its token is not in the command nor in the environment. */
  def processBuilder(): ProcessBuilder = {
    val builder = new ProcessBuilder(command.asJava)
    val environment = builder.environment()
    // A Python that is a PEX drops what PYTHONPATH names, and has a variable of its own for it.
    Seq("PYTHONPATH", "PEX_EXTRA_SYS_PATH").foreach { variable =>
      val inherited = Option(environment.get(variable)).toSeq
      environment.put(variable, StateStoreInternals.mergePythonPaths(pythonPath ++ inherited))
    }
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
  private val DriverPythonConf = "spark.pyspark.driver.python"
  private val DriverPythonVariable = "PYSPARK_DRIVER_PYTHON"
  private val EmbeddedRequirements = "pyarrow numpy google-crc32c"
  private val PackageRoot = "/statestore-python/"
  private val Py4jRoot = "/statestore-py4j/"

  /** What Java says of an error of the system: `error=24, Too many open files`, or `error: 24`. */
  private val ErrorNumber = "error[=:] ?(\\d+)".r

  /**
   * Choose the Python and lay out what is missing of the package.
   *
   * @param enginePackage `embedded` to extract the jar's copy into `scratch`, `installed` to leave
   *        the package to the Python's own environment
   * @throws io.statestore.LocalDiskException the local disk is full or failed
   */
  def prepare(enginePackage: String, scratch: File): EngineLaunch = {
    val (python, pythonFrom) = choosePython()
    val packagePath = enginePackage match {
      case "embedded" => Seq(extract(PackageRoot, new File(scratch, "python")).getPath)
      case _ => Nil
    }
    val requirements =
      if (packagePath.isEmpty) s"statestore==${Resources.version}" else EmbeddedRequirements
    EngineLaunch(python, pythonFrom, packagePath :+ py4jPath(scratch), requirements)
  }

  /**
   * The Python that Spark is told to use here. A driver outside of the cluster may have another one
   * than executors, by Spark's own keys; what is named there need not be a Python, but `jupyter`.
   */
  private def choosePython(): (String, String) = {
    val ofAll = named(PythonConf, PythonVariable)
    val ofDriver =
      if (isDriverOfCluster) named(DriverPythonConf, DriverPythonVariable).filter(isPython)
      else Nil
    val candidates = ofDriver ++ ofAll
    candidates.find(isThere).orElse(candidates.headOption)
      .orElse(sparkHome.flatMap(environmentPython).map(_ -> "the environment of pyspark"))
      .getOrElse("python3" -> "the PATH")
  }

  private def named(conf: String, variable: String): Seq[(String, String)] =
    StateStoreInternals.sparkConf.getOption(conf).map(_ -> conf).toSeq ++
      sys.env.get(variable).filter(_.nonEmpty).map(_ -> variable)

  private def isDriverOfCluster: Boolean =
    Option(SparkEnv.get).exists(StateStoreInternals.isDriver) &&
      !StateStoreInternals.sparkConf.get("spark.master", "local").startsWith("local")

  private def isPython(candidate: (String, String)): Boolean =
    new File(candidate._1).getName.startsWith("python")

  /** Whether a Python may be started; a name without a directory is left to the PATH. */
  private def isThere(candidate: (String, String)): Boolean =
    !candidate._1.contains('/') || new File(candidate._1).canExecute

  /** Python of the environment in which `home` is `lib/pythonX.Y/site-packages/pyspark`. */
  private def environmentPython(home: File): Option[String] =
    Iterator.iterate(home)(_.getParentFile).takeWhile(_ != null).take(5).toSeq match {
      case Seq(_, sitePackages, _, lib, environment)
          if sitePackages.getName.endsWith("-packages") && lib.getName.startsWith("lib") =>
        Some(new File(environment, "bin/python3")).filter(_.canExecute).map(_.getPath)
      case _ => None
    }

  /** Spark's own py4j; of a Spark that comes without Python the one in the jar. */
  private def py4jPath(scratch: File): String =
    sparkHome.map(new File(_, s"python/lib/${StateStoreInternals.py4jArchive}")).filter(_.isFile)
      .getOrElse(extract(Py4jRoot, new File(scratch, "py4j"))).getPath

  /** Directory of the Spark whose classes this JVM runs: SPARK_HOME, or else two above its jars. */
  private def sparkHome: Option[File] =
    sys.env.get("SPARK_HOME").filter(_.nonEmpty).map(new File(_)).orElse(
      for {
        source <- Option(classOf[SparkContext].getProtectionDomain.getCodeSource)
        jars <- Option(new File(source.getLocation.getPath).getParentFile)
        home <- Option(jars.getParentFile) if jars.getName == "jars"
      } yield home)

  private def extract(root: String, directory: File): File = {
    val index = new String(Resources.bytes(root + "INDEX"), UTF_8)
    ShimErrors.onLocalDisk("lay out the engine's package", directory) {
      index.linesIterator.map(_.trim).filter(_.nonEmpty).foreach { path =>
        val file = directory.toPath.resolve(path)
        if (!Files.exists(file)) {
          Files.createDirectories(file.getParent)
          // Another engine may be starting.
          val written = Files.createTempFile(file.getParent, ".tmp-", null)
          Files.write(written, Resources.bytes(root + path))
          Files.move(written, file, ATOMIC_MOVE)
        }
      }
    }
    directory
  }
}
