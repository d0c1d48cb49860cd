#!/usr/bin/env python3
"""Golden vectors of the block key chain, computed with hashlib and nothing of trimtab.

Prints the table that src/kv/key_chain_test.cpp holds: `python3 tests/golden/block_keys.py`. The format is that
of docs/kv.md: parts of u8 tag, u32 length, bytes (little-endian), SHA-256, first 16 bytes.
"""
import hashlib
import struct


def part(tag: int, data: bytes) -> bytes:
    return struct.pack("<BI", tag, len(data)) + data


def key(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()[:16]


def root(model="", kv_format="", tokenizer="", adapter="", tenant="") -> bytes:
    texts = [model, kv_format, tokenizer, adapter, tenant]
    head = part(1, struct.pack("<I", 1)) + part(2, struct.pack("<I", 128))
    return key(head + b"".join(part(3 + i, t.encode()) for i, t in enumerate(texts)))


def content(data: bytes) -> bytes:
    return key(part(32, struct.pack("<Q", len(data))) + data)


def chain(parent: bytes, tokens: list, images=()) -> list:
    keys = []
    for begin in range(0, len(tokens) - 127, 128):
        data = part(16, parent) + part(17, struct.pack("<128i", *tokens[begin : begin + 128]))
        for position, count, image in sorted(images):
            first, last = max(begin, position), min(begin + 128, position + count)
            if first < last:
                where = struct.pack("<IIII", count, first - begin, last - first, first - position)
                data += part(18, image + where)
        parent = key(data)
        keys.append(parent)
    return keys


def main() -> None:
    scope = root("smollm2-135m-q4_1", "f32/30x2x3x64", "bpe-49152", "", "")
    print("empty scope  ", root().hex())
    print("scope        ", scope.hex())
    print("with adapter ", root("smollm2-135m-q4_1", "f32/30x2x3x64", "bpe-49152", "acme", "").hex())
    print("with tenant  ", root("smollm2-135m-q4_1", "f32/30x2x3x64", "bpe-49152", "", "acme").hex())
    print("content      ", content(b"not really a PNG").hex())
    tokens = [(i * 7919 + 13) % 49152 for i in range(128 * 4 + 5)]
    tokens[3] = -1
    for i, k in enumerate(chain(scope, tokens)):
        print(f"text {i}       ", k.hex())
    images = [(100, 60, content(b"not really a PNG")), (300, 20, content(b""))]
    for i, k in enumerate(chain(scope, tokens, images)):
        print(f"images {i}     ", k.hex())
    long = [(i * 2654435761) % 129280 for i in range(65536)]
    print("64K tokens   ", chain(scope, long)[-1].hex())


if __name__ == "__main__":
    main()
