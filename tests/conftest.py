"""Limits on what tests see of this machine: unit tests see nothing of it; the others need a Docker engine."""

from __future__ import annotations

import functools
import gc
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import pytest_socket

from tests.left_behind import Before, adopt_orphans

UNIT = Path(__file__).resolve().parent / "unit"
ENGINE_MARKS = ("docker", "lab")
# Golden files are rewritten on demand (tests/golden.py); any other TOOLKIT_ setting would change results.
KEPT = ("TOOLKIT_GOLDEN",)


def is_hermetic(item: pytest.Item) -> bool:
    """Unit tests are, unless one is marked as using an engine after all."""
    return item.path.is_relative_to(UNIT) and not any(item.get_closest_marker(m) for m in ENGINE_MARKS)


@functools.cache
def engine_problem() -> str:
    """Return why tests cannot use a Docker engine, or an empty text; queried once."""
    if not shutil.which("docker"):
        return "there is no docker program on this machine"
    ask = ["docker", "version", "--format", "{{.Server.Version}}"]
    try:
        done = subprocess.run(ask, capture_output=True, text=True, timeout=20, check=False)
    except subprocess.TimeoutExpired:
        return "the Docker engine does not answer"
    return "" if done.returncode == 0 else f"no Docker engine: {done.stderr.strip()}"


def require_engine(problem: str, ci: str) -> None:
    """Skip without an engine; fail where CI is set, so that tests cannot vanish there unseen."""
    if not problem:
        return
    if ci.lower() not in ("", "0", "false"):
        pytest.fail(f"{problem}, and CI must run this test", pytrace=False)
    pytest.skip(problem)


def pytest_configure(config: pytest.Config) -> None:
    """Keep the order of every run that is not of unit tests alone: others share a practice cluster."""
    os.environ.pop("TOOLKIT_HOSTS", None)  # `make demo` prints a command that sets it
    # nohup, and a shell for commands in the background, ignore these signals; programs inherit that.
    for number in (signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    if hasattr(config, "workerinput"):
        return  # its options are those of the process that started it
    named = (config.invocation_params.dir / arg.partition("::")[0] for arg in config.args)
    if not all(path.resolve().is_relative_to(UNIT) for path in named):
        config.option.randomly_reorganize = config.option.randomly_reset_seed = False


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Keep the garbage collector from visiting the modules and tests, which stay, again and again."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print how to repeat a random order in which tests failed."""
    failed = any(terminalreporter.stats.get(kind) for kind in ("failed", "error"))
    if failed and getattr(config.option, "randomly_reorganize", False):
        seed = config.option.randomly_seed
        terminalreporter.write_line(f"The order was random. To repeat this order: make unit SEED={seed}")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    if any(item.get_closest_marker(mark) for mark in ENGINE_MARKS):
        require_engine(engine_problem(), os.environ.get("CI", ""))


@pytest.fixture(scope="session")
def empty_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home without files, and an ssh that reads this home's configuration."""
    home = tmp_path_factory.mktemp("home")
    (home / ".ssh").mkdir(mode=0o700)
    (home / ".ssh" / "config").touch()
    if real := shutil.which("ssh"):
        # OpenSSH takes the home from the user database, whatever HOME says.
        wrapper = home / "bin" / "ssh"
        wrapper.parent.mkdir()
        wrapper.write_text(f'#!/bin/sh\nexec {real} -F "$HOME/.ssh/config" "$@"\n')
        wrapper.chmod(0o755)
    return home


@pytest.fixture(autouse=True)
def leaves_nothing(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a unit test that leaves a module, variable, thread, process or open file behind."""
    if not is_hermetic(request.node):
        yield
        return
    adopt_orphans()
    before = Before()
    yield
    if left := before.left():
        pytest.fail("the test left behind:\n  " + "\n  ".join(left), pytrace=False)


# Set up after leaves_nothing, and with it monkeypatch, so that both have ended when that looks.
@pytest.fixture(autouse=True)
def hermetic(
    leaves_nothing: None, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, empty_home: Path
) -> Iterator[None]:
    """Unit tests: no socket of any family, no home folder, no settings of this user, no engine."""
    if not is_hermetic(request.node):
        yield
        return
    for name in [n for n in os.environ if n.startswith("TOOLKIT_") and n not in KEPT]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(empty_home))
    for name in ("XDG_CACHE_HOME", "XDG_STATE_HOME", "SSH_AUTH_SOCK", "DOCKER_CONTEXT"):
        monkeypatch.delenv(name, raising=False)
    # For programs that tests start: the ban on sockets holds in this process only.
    monkeypatch.setenv("DOCKER_HOST", "unix:///nonexistent/docker.sock")
    monkeypatch.setenv("PATH", f"{empty_home}/bin:{os.environ.get('PATH', os.defpath)}")
    pytest_socket.disable_socket(allow_unix_socket=False)
    yield
    pytest_socket.enable_socket()
