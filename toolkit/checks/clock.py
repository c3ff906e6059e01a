"""Checks of the hosts' clocks. Certificates, leases and logs depend on these clocks."""

from __future__ import annotations

from collections.abc import Iterator

from toolkit.checks.model import Check, Scene, Seen, error, unchecked, warning
from toolkit.core.finding import Finding
from toolkit.protocol.decode import real

# Seconds. Above the first limit, logs are hard to sort. Minutes break rendezvous and certificates.
WARN_AHEAD, STOP_AHEAD = 1.0, 30.0


def clock_offset(sent: float, received: float, begun: str, ended: str) -> tuple[float | None, float]:
    """Return the seconds by which the host is ahead of the clock of this machine, and the error bound.

    As in RFC 5905 section 8: the host's times of beginning and end lie between this machine's times of
    sending and receiving, so the error is at most half of the round trip.

    Args:
        sent, received: this machine's clock in seconds since the epoch.
        begun, ended: the output of ``date +%s.%N`` on the host.
    """
    first, last = real(begun), real(ended)
    if first is None or last is None:  # a date without %N, or no answer
        return None, 0.0
    return ((first - sent) + (last - received)) / 2, max(0.0, (received - sent) - (last - first)) / 2


def _clock(seen: Seen, scene: Scene) -> Iterator[Finding]:
    if seen.ahead is None:
        yield unchecked("the date command of the host prints no fractions of a second")
        return
    off = abs(seen.ahead) - seen.doubt
    if off > WARN_AHEAD:
        found = error if off > STOP_AHEAD else warning
        way = "ahead of" if seen.ahead > 0 else "behind"
        what = f"the clock is {_span(abs(seen.ahead))} {way} the clock of your machine"
        yield found(what, f"on {seen.host}: sudo timedatectl set-ntp true  # or install chrony")


def _span(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


CHECKS = (Check("clock", "clocks agree", host=_clock),)
