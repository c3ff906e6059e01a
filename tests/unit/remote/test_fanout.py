"""Work for many hosts at once."""

from __future__ import annotations

import threading

from toolkit.errors import ToolkitError
from toolkit.remote.fanout import fan_out

HOSTS = 256


def test_work_of_one_host_can_wait_for_work_of_every_other_host() -> None:
    together = threading.Barrier(HOSTS)

    def work(host: int) -> int:
        together.wait(30)
        if host == 7:
            raise ToolkitError("the host failed")
        return host

    values, errors = fan_out(range(HOSTS), work)
    assert sorted(values) == [host for host in range(HOSTS) if host != 7]
    assert list(errors) == [7]
