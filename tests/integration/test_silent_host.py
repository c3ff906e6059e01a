"""A host whose kernel takes connections while nothing runs on it, played by a listener of this machine."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

HOSTS = """
cluster: silent
image: trainer:1.0
hosts:
  box1: {{address: 127.0.0.1, port: {port}, slots: 1}}
"""


def test_a_host_that_says_nothing_is_told_in_our_words_alone(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        path = tmp_path / "hosts.yaml"
        path.write_text(HOSTS.format(port=listener.getsockname()[1]))
        done = subprocess.run(
            [str(Path(sys.executable).with_name("toolkit")), "status", "--hosts", str(path)],
            capture_output=True,
            text=True,
            timeout=60,
        )
    assert done.returncode != 0
    assert "takes the connection and then says nothing: frozen, or far too busy" in done.stdout + done.stderr
    assert "Traceback" not in done.stderr and "Exception" not in done.stderr
