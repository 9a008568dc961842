package io.statestore.engine

/** What an engine process offers over py4j: docs/protocol.md, one JSON object each way. */
trait EngineApi {
  def call(request: String): String
}
