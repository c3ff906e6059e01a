"""A host whose kernel takes connections while nothing runs on it, played by a listener of this machine."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.world import heed_signals

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
            timeout=240,
        )
    assert done.returncode != 0
    assert (
        "accepts the connection but sends nothing; the host might be hung or overloaded"
        in done.stdout + done.stderr
    )
    assert "Traceback" not in done.stderr and "Exception" not in done.stderr


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (signal.SIGTERM, 143),
        pytest.param(signal.SIGHUP, 129, marks=pytest.mark.rare),
        pytest.param(signal.SIGINT, 130, marks=pytest.mark.rare),
    ],
)
def test_a_signal_ends_a_command_that_waits_as_ctrl_c_does(tmp_path: Path, number: int, code: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        path = tmp_path / "hosts.yaml"
        path.write_text(HOSTS.format(port=listener.getsockname()[1]))
        process = subprocess.Popen(
            [str(Path(sys.executable).with_name("toolkit")), "status", "--hosts", str(path)],
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            preexec_fn=heed_signals,
        )
        caller, _ = listener.accept()  # held: closed, it would be an answer
        with caller:
            # It has connected, so it waits for an answer or is about to: either way the signal ends it.
            process.send_signal(number)
            said = process.communicate(timeout=120)[1]
    assert process.returncode == code, said
    assert "interrupted" in said and "Traceback" not in said
