package io.statestore.bench

import java.nio.charset.StandardCharsets.UTF_8
import java.util.Properties
import java.util.concurrent.atomic.AtomicReference
import java.util.concurrent.locks.LockSupport

import org.apache.kafka.clients.producer.{KafkaProducer, ProducerRecord}
import org.apache.kafka.common.serialization.ByteArraySerializer

/**
 * Sends records to a topic at a constant rate, whoever reads them: arguments are the broker, the
 * topic, records a second, seconds, and a number of keys, which come in a random order that is the
 * same each time. The time of a record is that of its call.
 */
object KafkaLoad {
  def main(args: Array[String]): Unit = {
    val (servers, topic) = (args(0), args(1))
    val Seq(rate, seconds, numKeys) = args.drop(2).map(_.toLong).toSeq: @unchecked
    val settings = new Properties()
    settings.put("bootstrap.servers", servers)
    settings.put("acks", "1")
    val bytes = new ByteArraySerializer
    val producer = new KafkaProducer[Array[Byte], Array[Byte]](settings, bytes, bytes)
    producer.partitionsFor(topic)
    val failed = new AtomicReference[Exception]
    val begin = System.nanoTime()
    var sent = 0L
    while (sent < rate * seconds) {
      val due = begin + sent * 1000000000L / rate
      while (System.nanoTime() < due) LockSupport.parkNanos(due - System.nanoTime())
      val key = s"key-${Math.floorMod(mix(sent), numKeys)}".getBytes(UTF_8)
      producer.send(new ProducerRecord(topic, key, Array.emptyByteArray), (_, error) =>
        if (error != null) failed.set(error))
      sent += 1
    }
    producer.close()
    Option(failed.get).foreach(throw _)
  }

  private def mix(number: Long): Long = {
    val once = (number ^ (number >>> 33)) * 0xff51afd7ed558ccdL
    val twice = (once ^ (once >>> 33)) * 0xc4ceb9fe1a85ec53L
    twice ^ (twice >>> 33)
  }
}
