package io.statestore

/** Commands that an error tells somebody to run, as a shell takes them. */
object Commands {

  /** Rescales a checkpoint that no query is writing. */
  def rescale(checkpoint: String, numPartitions: Int): String =
    s"statestore rescale ${quoted(named(checkpoint))} --num-partitions $numPartitions --yes"

  /** Makes a new checkpoint of one that no query is writing, where `NEW` stands. */
  def restore(checkpoint: String): String = s"statestore restore ${quoted(named(checkpoint))} NEW"

  /** Hadoop does not encode a `file:` URI, as a command takes it to be: a path is what it is. */
  private def named(directory: String): String = directory.replaceFirst("^file:/+", "/")

  /** A word of a command, in quotes where the shell would read it as something else. */
  private def quoted(word: String): String =
    if (word.matches("[\\w@%+=:,./-]+")) word else s"'${word.replace("'", "'\"'\"'")}'"
}
