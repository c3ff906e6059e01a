"""Start of a practice cluster, step by step; a step changes nothing that is already correct."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import toolkit
from toolkit.core.command import command
from toolkit.core.report import Outcome, Report, Status
from toolkit.errors import CommandFailed, LabError, quotation
from toolkit.lab import commands as cmd
from toolkit.lab import files
from toolkit.lab.engine import Found, LabEngine
from toolkit.lab.spec import ENGINES, LabSpec
from toolkit.lab.topology import LabHost, Means, free_subnet, lab_hosts, routed_networks
from toolkit.remote.fanout import fan_out

Progress = Callable[[str], None]

READY_SECONDS = 90
_GREETING_SECONDS = 10.0
_REFUSED_PAUSE = 0.2
_RECIPE = Path(__file__).parent


def silent(line: str) -> None:
    """Ignore a progress line."""


class Book:
    """Ordered outcomes; each is printed as soon as it is known."""

    def __init__(self, progress: Progress) -> None:
        self.progress = progress
        self.outcomes: list[Outcome] = []
        self.start = time.monotonic()

    def note(self, phase: str, step: str, host: str, changed: bool, since: float, detail: str = "") -> None:
        """Record the outcome of a step that began at ``since``, in seconds of time.monotonic."""
        status: Status = "ok" if changed else "skipped"
        seconds = time.monotonic() - since
        self.outcomes.append(Outcome(phase, step, host, status, seconds, detail))
        who = f"{host}: " if host else ""
        self.progress(f"{seconds:6.1f} s  {who}{step}{'' if changed else ' (unchanged)'}")

    def report(self, title: str) -> Report:
        return Report(title, tuple(self.outcomes), time.monotonic() - self.start)


class Builder:
    """One run of lab_up."""

    def __init__(self, engine: LabEngine, spec: LabSpec, book: Book) -> None:
        self.engine, self.spec, self.book = engine, spec, book
        self.folder = Path(spec.folder)

    def go(self, before: Found) -> Report:
        """Create and start what is missing in ``before``; return when ssh and engine of every host answer."""
        images = self._images()
        made = [self._network(name, before) for name in self.spec.networks]
        hosts = lab_hosts(self.spec, *(subnet for subnet, _ in made))
        fresh = any(new for _, new in made)
        since = time.monotonic()
        public, new = files.ensure_key(self.folder)
        self.book.note("files", "key pair", "", new, since)
        there = {}
        for name, container in before.hosts.items():
            if why := why_recreated(fresh, container.status):
                since = time.monotonic()
                self.engine.remove(container)
                self.book.note("hosts", f"container removed, because {why}", name, True, since)
            else:
                there[name] = container.status
        started = self._start(hosts, there, images)
        keys = self._ready(hosts, started, public)
        since = time.monotonic()
        known = files.render_known_hosts((host.address, keys[host.name]) for host in hosts)
        changed = files.ensure_text(self.folder / "known_hosts", known)
        put = files.put_hosts_file(self.folder, files.render_hosts_yaml(self.spec, hosts))
        title = str(put.path)
        if put.edited:
            same = put.path.name == "hosts.yaml"
            settings = (
                "the settings of the practice cluster did not change"
                if same
                else f"the new settings are in {put.path}"
            )
            title = f"toolkit kept your edited hosts.yaml; {settings}"
        self.book.note("files", title, "", changed or put.changed, since)
        return self.book.report(f"lab {self.spec.name}")

    def _images(self) -> dict[str, str]:
        recipe = b"".join((_RECIPE / name).read_bytes() for name in ("Dockerfile.host", "host.sh"))
        images = {}
        for kind in dict.fromkeys(self.spec.engines):
            since = time.monotonic()
            images[kind] = cmd.image_reference(kind, recipe)
            missing = not self.engine.has_image(images[kind])
            if missing:
                self._base(kind)
                self.book.progress(f"          building {images[kind]}, the image of the practice hosts …")
                self.engine.do(cmd.build_command(kind, images[kind], str(_RECIPE), _proxies()), 1800)
            self.book.note("image", f"host image {images[kind]}", "", missing, since)
        return images

    def _base(self, kind: str) -> None:
        base, suite = ENGINES[kind].base, ENGINES[kind].suite
        script = _base_script()
        if self.engine.has_image(base) or script is None:
            return  # without the script docker build pulls it
        self.book.progress(f"          building the base image {base} …")
        self.engine.do(command("sh", str(script), suite), 1800)

    def _network(self, name: str, before: Found) -> tuple[str, bool]:
        since = time.monotonic()
        for network in before.networks:
            if network.name == name:
                subnet = str(network.attrs["IPAM"]["Config"][0]["Subnet"])
                self.book.note("network", f"network {subnet}", "", False, since)
                return subnet, False
        table = Path("/proc/net/route")
        taken = self.engine.subnets() + (routed_networks(table.read_text()) if table.exists() else ())
        barred: list[str] = []
        while True:
            subnet = free_subnet(taken, barred)
            line = cmd.network_command(self.spec, name, subnet)
            made = self.engine.ask(line)
            if made.ok:
                self.book.note("network", f"network {subnet}", "", True, since)
                return subnet, True
            # Another lab can take the same subnet at this moment; the engine decides.
            if "overlap" not in made.stderr.lower():
                raise CommandFailed(line.line(), made.status, made.output)
            barred.append(subnet)

    def _start(self, hosts: tuple[LabHost, ...], there: dict[str, str], images: dict[str, str]) -> set[str]:
        missing = any(host.name not in there for host in hosts)
        means = self._means(next(iter(images.values()))) if missing else None

        def start(host: LabHost) -> bool:
            if host.name not in there:
                assert means is not None
                for line in cmd.volume_commands(self.spec, host):
                    self.engine.do(line)
                for line in cmd.start_commands(self.spec, host, means, images[host.engine]):
                    self.engine.do(line)
                return True
            if there[host.name] == "running":
                return False
            verb = "unpause" if there[host.name] == "paused" else "start"
            self.engine.do(command("docker", verb, host.container))
            return True

        # Not fan_out: on Ctrl-C this waits for running starts, so that no container appears after the
        # clean-up.
        with ThreadPoolExecutor(min(8, len(hosts))) as pool:
            changed = list(pool.map(start, hosts))
        return {host.name for host, new in zip(hosts, changed, strict=True) if new}

    def _means(self, image: str) -> Means:
        """Try what the engine permits: this depends on the engine's machine, which can be a different one."""
        helper = self.engine.helper(self.spec.name)
        privileged = self.engine.ask(cmd.try_privileged_command(self.spec, helper, image)).ok
        return Means(privileged, privileged and str(self.engine.info.get("CgroupVersion")) == "2")

    def _ready(self, hosts: tuple[LabHost, ...], started: set[str], public: str) -> dict[str, str]:
        def ready(host: LabHost) -> str:
            since = time.monotonic()
            line = cmd.ready_command(host, READY_SECONDS, public)
            answer = self.engine.ask(line, READY_SECONDS + 10)
            changed = host.name in started
            if not answer.ok and not changed:
                self.engine.do(command("docker", "restart", host.container))
                answer, changed = self.engine.ask(line, READY_SECONDS + 10), True
            if not answer.ok:
                logs = self.engine.ask(command("docker", "logs", "--tail", "8", host.container))
                last = quotation(f"{answer.output}\n{logs.output}".strip().splitlines())
                raise LabError(f"the practice host did not start{last}", host=host.name)
            greet(host)
            version, key = answer.stdout.strip().splitlines()[-2:]
            title = f"sshd and engine {version} run at {host.address} ({host.ssh_card.interface})"
            self.book.note("hosts", title, host.name, changed, since, version)
            return key

        keys, errors = fan_out(hosts, ready)
        if errors:
            first = next(iter(errors.values()))
            if len(errors) == 1:
                raise first
            raise LabError(
                "\n  ".join([f"{len(errors)} practice hosts are not ready", *map(str, errors.values())])
            )
        return {host.name: key for host, key in keys.items()}


def why_recreated(networks_missing: bool, status: str) -> str:
    """Return why a host's container cannot be started again; empty if it can."""
    if networks_missing:
        return "a network of the practice cluster was removed"
    # Its creation was interrupted, and it can miss a network card.
    return "the container has never started" if status == "created" else ""


def greet(host: LabHost, port: int = 22) -> None:
    """Read sshd's greeting from this machine.

    After a killed host starts again, connections can be refused for some seconds: the kernel removes the
    network of the old container late, and this network has the same addresses.

    Raises:
        LabError: the host runs, but this machine cannot reach it.
    """
    deadline = time.monotonic() + READY_SECONDS
    with suppress(OSError):
        while True:
            try:
                with socket.create_connection((host.address, port), timeout=_GREETING_SECONDS) as link:
                    link.settimeout(_GREETING_SECONDS)
                    if link.recv(4) == b"SSH-":
                        return
                    break
            except ConnectionRefusedError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(_REFUSED_PAUSE)
    raise LabError(
        f"the practice host runs, but your machine cannot reach {host.address} port {port}",
        "use a Linux machine with Docker Engine, not with Docker Desktop or rootless Docker",
        host.name,
    )


def _proxies() -> tuple[str, ...]:
    names = ("http_proxy", "https_proxy", "no_proxy")
    return tuple(n for name in names for n in (name, name.upper()) if os.environ.get(n))


def _base_script() -> Path | None:
    """Return image/base.sh of a checkout or of an installed package, None if there is none."""
    package = Path(toolkit.__file__).parent
    for place in (package.parent / "image" / "base.sh", package / "_data" / "image" / "base.sh"):
        if place.exists():
            return place
    return None
