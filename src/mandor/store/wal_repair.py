"""Repairs the checksums of a copied write-ahead log, so that SQLite reads the frames behind a damaged one.

SQLite ignores everything after the first frame whose checksum does not fit. Here each frame of the log's last
generation gets a new checksum; the rows' own checksums show whether the content of a damaged frame is usable.
"""

import struct
from pathlib import Path

HEADER_BYTES = 32
FRAME_BYTES = 24
_MAGIC_BIG = 0x377F0683
_MAGIC_LITTLE = 0x377F0682


def repair(path: Path, page_bytes: int) -> bool:
    """Rewrite the file in place; return False if nothing had to be repaired, or the header is unusable."""
    data = bytearray(path.read_bytes())
    if len(data) < HEADER_BYTES + FRAME_BYTES + page_bytes:
        return False
    magic, version, _, sequence, salt1, salt2 = struct.unpack_from(">6I", data)
    if magic not in (_MAGIC_BIG, _MAGIC_LITTLE):
        magic = _MAGIC_LITTLE
    order = ">" if magic == _MAGIC_BIG else "<"
    step = FRAME_BYTES + page_bytes
    starts = range(HEADER_BYTES, len(data) - step + 1, step)
    salts = [struct.unpack_from(">2I", data, start + 8) for start in starts]
    # The first two frames and the header agree, unless one of them is damaged.
    votes = [(salt1, salt2), *salts[:2]]
    salt = max(votes, key=votes.count)
    struct.pack_into(">6I", data, 0, magic, 3007000, page_bytes, sequence, *salt)
    sums = _sums(data[:24], (0, 0), order)
    changed = version != 3007000 or struct.unpack_from(">2I", data, 24) != sums
    struct.pack_into(">2I", data, 24, *sums)
    # Frames of an earlier generation follow those of the last one; a damaged frame lies between valid ones.
    last = max((index for index, found in enumerate(salts) if found == salt), default=-1)
    for index, start in enumerate(starts):
        if index > last:
            break
        struct.pack_into(">2I", data, start + 8, *salt)
        sums = _sums(data[start : start + 8], sums, order)
        sums = _sums(data[start + FRAME_BYTES : start + step], sums, order)
        if struct.unpack_from(">2I", data, start + 16) != sums:
            changed = True
            struct.pack_into(">2I", data, start + 16, *sums)
    if changed:
        path.write_bytes(data)
    return changed


def _sums(data: bytes | bytearray, before: tuple[int, int], order: str) -> tuple[int, int]:
    """Continue SQLite's checksum over more data."""
    first, second = before
    words = struct.unpack(f"{order}{len(data) // 4}I", data)
    for index in range(0, len(words), 2):
        first = (first + words[index] + second) & 0xFFFFFFFF
        second = (second + words[index + 1] + first) & 0xFFFFFFFF
    return first, second
