"""One frame of the spool on disk: magic, CRC32C, lengths, a small JSON head, the wire form of the batch."""

from __future__ import annotations

import struct
from typing import BinaryIO

import msgspec
from crc32c import crc32c
from msgspec import Struct

from passmuster.batch import MAX_BYTES, Batch, decode, encode

# 0xff never stands in JSON, so no text that a host or job wrote can look like the start of a frame.
MAGIC = b"\xffPMF"
_HEAD = struct.Struct("<4sIHI")  # magic, CRC32C of all that follows it, bytes of the head, bytes of the batch
MAX_HEAD = 8192


class _Head(Struct, frozen=True, array_like=True):
    kind: str
    host: str
    boot_id: str
    seq: int
    at: int


_encode_head = msgspec.json.Encoder().encode
_decode_head = msgspec.json.Decoder(_Head).decode


class Frame(Struct, frozen=True):
    """One batch as it lies in the spool; `payload` is the wire form."""

    kind: str
    host: str
    boot_id: str
    seq: int
    at: int  # when it was appended, nanoseconds UTC
    payload: bytes

    def batch(self) -> Batch:
        """Decode the batch. Raises BadRecord or FutureVersion."""
        return decode(self.payload)


def pack(batch: Batch, at: int) -> bytes:
    """Return the frame of a batch that is appended at `at`."""
    head = _encode_head(_Head(batch.kind, batch.host, batch.boot_id, batch.seq, at))
    payload = encode(batch)
    frame = bytearray(_HEAD.pack(MAGIC, 0, len(head), len(payload)) + head + payload)
    struct.pack_into("<I", frame, 4, crc32c(frame[8:]))
    return bytes(frame)


def parse(file: BinaryIO, offset: int, size: int) -> tuple[int, Frame] | None:
    """Read the frame that begins at an offset; None when there is no whole, unbroken one."""
    file.seek(offset)
    fixed = file.read(_HEAD.size)
    if len(fixed) < _HEAD.size:
        return None
    magic, crc, head_length, length = _HEAD.unpack(fixed)
    end = offset + _HEAD.size + head_length + length
    if magic != MAGIC or head_length > MAX_HEAD or length > MAX_BYTES or end > size:
        return None
    body = file.read(head_length + length)
    if len(body) != head_length + length or crc32c(body, crc32c(fixed[8:])) != crc:
        return None
    head = _decode_head(body[:head_length])
    return end, Frame(head.kind, head.host, head.boot_id, head.seq, head.at, body[head_length:])


def find(file: BinaryIO, offset: int, size: int) -> int | None:
    """Find where the next whole frame begins, from an offset on."""
    overlap = len(MAGIC) - 1
    while offset < size:
        file.seek(offset)
        chunk = file.read(min(2**20, size - offset))
        found = chunk.find(MAGIC)
        if found >= 0:
            if parse(file, offset + found, size) is not None:
                return offset + found
            offset += found + 1
        elif len(chunk) <= overlap:
            return None
        else:
            offset += len(chunk) - overlap
    return None
