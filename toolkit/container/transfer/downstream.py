"""What relay.py gives to the next host."""

from __future__ import annotations

import socket
import ssl
from typing import TYPE_CHECKING

from toolkit.container.transfer.frames import Fault, read_frame, words_of
from toolkit.container.transfer.links import hang_up, peer, tune
from toolkit.protocol.chunks import HEAD

if TYPE_CHECKING:
    from toolkit.container.transfer.relay import Relay

CONNECT, GREET = 3.0, 5.0


class Child:
    """The next host: gets what it needs, from the chunk on that it names."""

    def __init__(self, relay: Relay, host: str) -> None:
        self.relay, self.host = relay, host
        self.at: int | None = None  # the chunk it needs next, once it has said so
        self.ended = False
        self.link: ssl.SSLSocket | None = None

    def give(self, address: str, port: int) -> None:
        relay = self.relay
        begun = False
        try:
            here = (relay.address, 0)
            caller = socket.create_connection((address, port), CONNECT, source_address=here)
            self.link = link = relay.client.wrap_socket(caller)
            if peer(link) != self.host:
                raise Fault(f"{peer(link)} answers there")
            link.settimeout(GREET)
            _, _, number, _ = read_frame(link)
            tune(link)
            begun = True
            while not self.ended:
                with relay.changed:
                    self.at = number
                    relay.changed.notify_all()
                    while not self.ended and number >= relay.at:
                        relay.changed.wait()
                    if self.ended:
                        return
                    if number not in relay.wire:
                        relay.say(lost=self.host, begun=True, gone=relay.first, why="it fell behind")
                        return
                    flags, data = relay.wire[number]
                link.sendall(HEAD.pack(b"C", flags, number, len(data)))
                link.sendall(data)
                number += 1
        except (OSError, Fault, EOFError) as error:
            if not self.ended:
                relay.say(lost=self.host, begun=begun, why=words_of(error))
        finally:
            self.end()
            with relay.changed:
                if relay.child is self:
                    relay.child = None
                relay.changed.notify_all()

    def end(self) -> None:
        self.ended = True
        hang_up(self.link)
