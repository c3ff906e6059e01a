"""The measuring of a pair over real sockets of this machine."""

from __future__ import annotations

import socket
import threading

import pytest

from toolkit.container.bench import network


@pytest.mark.parametrize("streams", [1, 3])
def test_both_sides_learn_what_came_in(streams: int) -> None:
    listeners = [network.listen("127.0.0.1") for _ in range(2)]
    addresses = [("127.0.0.1", listener.getsockname()[1]) for listener in listeners]
    found: dict[int, tuple[float, float]] = {}

    def side(me: int) -> None:
        found[me] = network.measure(me, 1 - me, addresses, listeners[me], 0.3, streams)

    threads = [threading.Thread(target=side, args=(me,)) for me in (0, 1)]
    for thread in threads:
        thread.start()
    # An unauthenticated client connects in the meantime, and is refused.
    with socket.create_connection(addresses[1]) as stranger:
        stranger.sendall(network.HELLO.pack(77))
        for thread in threads:
            thread.join(60)
    for listener in listeners:
        listener.close()
    # What loopback gives on a machine with other work is anybody's guess; a zero is not.
    assert found[0][0] > 1e6 and found[1][0] > 1e6, found
    assert 0 < found[0][1] < 10 and found[1][1] == 0, found


def test_a_peer_that_never_comes_is_an_error_and_not_a_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "LIMIT_S", 0.3)
    listener = network.listen("127.0.0.1")
    with listener, pytest.raises(OSError, match="timed out"):
        network.measure(1, 0, [("127.0.0.1", 9), listener.getsockname()], listener, 0.1, 1)


def test_a_peer_that_goes_away_is_an_error() -> None:
    listener = network.listen("127.0.0.1")

    def come_and_go() -> None:
        with socket.create_connection(listener.getsockname()) as gone:
            gone.sendall(network.HELLO.pack(0))

    thread = threading.Thread(target=come_and_go)
    thread.start()
    with listener:
        (connection,) = network.accept(listener, 0, 1)
        with connection, pytest.raises(ConnectionError):
            network.exactly(connection, 10)
    thread.join()
