package io.statestore

import com.fasterxml.jackson.databind.{JsonNode, ObjectMapper}
import com.fasterxml.jackson.databind.node.ObjectNode

/** JSON as the protocol between shim and engine uses it. */
object Json {
  private[this] val mapper = new ObjectMapper()

  def obj(): ObjectNode = mapper.createObjectNode()

  def write(node: JsonNode): String = mapper.writeValueAsString(node)

  /** Parse any JSON value. */
  def read(text: String): JsonNode = mapper.readTree(text)

  /**
   * Parse a JSON object.
   *
   * @throws java.lang.IllegalArgumentException the text is not a JSON object
   */
  def readObject(text: String): ObjectNode = {
    val node =
      try mapper.readTree(text)
      catch { case e: com.fasterxml.jackson.core.JacksonException => throw notAnObject(text, e) }
    node match {
      case parsed: ObjectNode => parsed
      case _ => throw notAnObject(text, null)
    }
  }

  private def notAnObject(text: String, cause: Throwable): IllegalArgumentException =
    new IllegalArgumentException(s"text is not a JSON object: text=${text.take(200)}", cause)
}
