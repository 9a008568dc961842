package io.statestore.engine

/** Methods of an engine process over py4j: docs/protocol.md, one JSON object each way. */
trait EngineApi {
  def call(request: String): String
}
