"""Tests of the choice of chunks to compress."""

from __future__ import annotations

import os

from toolkit.transfer.feeder import Packer

CHUNK = 2**18


def test_what_gets_smaller_is_compressed_where_that_is_worth_it() -> None:
    packer = Packer()
    packed, data = packer.pack(b"a" * CHUNK, True)
    assert packed and len(data) < 1000
    assert packer.pack(b"a" * CHUNK, False) == (False, b"a" * CHUNK)


def test_what_does_not_get_smaller_is_tried_less_and_less() -> None:
    packer, noise, tried = Packer(), os.urandom(CHUNK), []
    compress = packer._compress

    def counting(data: bytes, level: int) -> bytes:
        tried.append(number)
        return compress(data, level)

    packer._compress = counting
    for number in range(200):  # noqa: B007, read by counting
        assert packer.pack(noise, True) == (False, noise)
    assert tried[:4] == [0, 5, 14, 31] and len(tried) <= 7
    # One that does makes it look at each again.
    while not packer.pack(b"a" * CHUNK, True)[0]:
        pass
    assert packer.pack(b"b" * CHUNK, True)[0]
