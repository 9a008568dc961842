package org.apache.arrow.compression

import com.github.luben.zstd.{Zstd, ZstdException}
import org.apache.arrow.memory.{ArrowBuf, BufferAllocator}
import org.apache.arrow.vector.compression.{AbstractCompressionCodec, CompressionCodec}
import org.apache.arrow.vector.compression.{CompressionUtil, NoCompressionCodec}

/**
 * The zstd buffers of Arrow files. Spark 4.0 comes with Arrow but without its arrow-compression,
 * where later ones have the class of this name.
 */
final class CommonsCompressionFactory extends CompressionCodec.Factory {
  override def createCodec(codec: CompressionUtil.CodecType): CompressionCodec =
    createCodec(codec, Zstd.defaultCompressionLevel)

  override def createCodec(codec: CompressionUtil.CodecType, level: Int): CompressionCodec =
    codec match {
      case CompressionUtil.CodecType.ZSTD => new ZstdBuffers(level)
      case CompressionUtil.CodecType.NO_COMPRESSION => NoCompressionCodec.INSTANCE
      case other => throw new IllegalArgumentException(s"codec is not supported: codec=$other")
    }
}

object CommonsCompressionFactory {
  val INSTANCE = new CommonsCompressionFactory
}

/** A buffer is its length before compression, 8 bytes little-endian, and one zstd frame. */
private final class ZstdBuffers(level: Int) extends AbstractCompressionCodec {
  private val Prefix = CompressionUtil.SIZE_OF_UNCOMPRESSED_LENGTH

  override def getCodecType: CompressionUtil.CodecType = CompressionUtil.CodecType.ZSTD

  override protected def doCompress(allocator: BufferAllocator, from: ArrowBuf): ArrowBuf = {
    val room = Zstd.compressBound(from.writerIndex())
    filled(allocator, Prefix + room) { to =>
      Prefix + lengthOf(Zstd.compressUnsafe(
        to.memoryAddress() + Prefix, room, from.memoryAddress(), from.writerIndex(), level))
    }
  }

  override protected def doDecompress(allocator: BufferAllocator, from: ArrowBuf): ArrowBuf = {
    val room = readUncompressedLength(from)
    filled(allocator, room) { to =>
      lengthOf(Zstd.decompressUnsafe(
        to.memoryAddress(), room, from.memoryAddress() + Prefix, from.writerIndex() - Prefix))
    }
  }

  /** A new buffer; `fill` says how many bytes it wrote. */
  private def filled(allocator: BufferAllocator, size: Long)(fill: ArrowBuf => Long): ArrowBuf = {
    val buffer = allocator.buffer(size)
    try buffer.writerIndex(fill(buffer))
    catch {
      case e: Throwable =>
        buffer.close()
        throw e
    }
  }

  private def lengthOf(result: Long): Long =
    if (Zstd.isError(result)) throw new ZstdException(result) else result
}
