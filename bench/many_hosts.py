"""Hosts without engines: each has a network, a name, processes and a home of its own, and a real sshd.

On each, `docker` is a shell script that gives recorded replies and keeps the containers that it starts as
files. A container is the host itself with the folders that the container mounts: its sshd and the programs of
`docker exec` are real. `mpirun` is a stub that starts each rank by the agent, as Open MPI starts its daemons.
Hosts share the processors and the disk of this machine. As root, with the program sshd.
"""

from __future__ import annotations

import json
import os
import pwd
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import yaml

NET, IMAGE = "toolkit-many", "trainer:1.0"
HERE, GATE = "10.210.255.254", "10.210.255.253"
RECORDED = Path(__file__).resolve().parent.parent / "tests/unit/image_inspect/docker-26.1.json"
# Every pair of hosts can try a connection, and all networks of a kernel share one table of neighbors.
NEIGHBORS = "net.ipv4.neigh.default.gc_thresh3"
SECONDS = 120.0  # for all sshds to listen

DOCKER = r"""#!/bin/sh
# docker with recorded replies. Without forks where possible: all hosts share the processors of one machine.
engine=$HOME/.engine
show() { while IFS= read -r line; do printf '%s\n' "$line"; done <"$1"; }
cut() { # ID or NAME of a container
  for found in "$engine"/*; do
    case "$found" in "$engine/$1"*|*"-$1") [ -f "$found" ] && return ;; esac
  done
  echo "Error: No such container: $1" >&2; return 1
}
case $1 in
info) echo @info@ ;;
version) echo 26.1.5 ;;
ps)
  for found in "$engine"/*; do
    [ -f "$found" ] || continue
    found=${found##*/}; id=${found%%-*}
    case $* in *--format*) echo "$id ${found#*-} \"root\"" ;; *) echo "$id" ;; esac
  done ;;
images) case $* in *trainer*|*toolkit.local*|*' -aq '*) echo "@id@" ;; esac ;;
image)
  case $2 in inspect) ;; *) exit 0 ;; esac
  case $* in *trainer*|*toolkit.local*|*@id@*) ;; *) echo '[]'; exit 1 ;; esac
  case $* in *--format*) echo "@id@" ;; *) echo @image@ ;; esac ;;
container|inspect)
  [ "$1" = inspect ] || shift
  shift; format=; [ "$1" != --format ] || { format=$2; shift 2; }
  status=0; comma=; [ -n "$format" ] || echo '['
  for one; do
    cut "$one" || { status=1; continue; }
    case $format in
    *State.ExitCode*) ;;
    *Config.Labels*)
      label=${format##*Labels } label=${label%%\}*} value=
      while IFS= read -r line; do
        case $line in *"$label: "*) value=${line#*"$label: \""} value=${value%%\"*} ;; esac
      done <"$found"
      case $format in *State.Status*) echo "running $value" ;; *) echo "$value" ;; esac ;;
    *State.Running*)
      case $format in *.Id*) running=${found##*/} running="${running%%-*} " ;; *) running= ;; esac
      # Main has no sshd.
      if [ ! -f "$engine/.pid" ] || kill -0 "$(show "$engine/.pid")" 2>&-; then echo "${running}true"
      else echo "${running}false"; fi ;;
    *.Id*) found=${found##*/}; echo "${found%%-*}" ;;
    '') printf %s "$comma"; show "$found"; comma=, ;;
    esac
  done
  [ -n "$format" ] || echo ']'
  exit $status ;;
run)
  name= labels= detached= mounts= serves=
  while [ $# -gt 0 ]; do
    case $1 in
    --detach) detached=yes ;;
    --name) name=$2 ;;
    --label) labels="$labels${labels:+,}\"${2%%=*}\": \"${2#*=}\"" ;;
    --mount) mounts="$mounts $2" ;;
    /usr/sbin/sshd) serves=yes ;;
    esac
    shift
  done
  [ "$detached" ] || exit 0
  if cut "$name" 2>&-; then
    echo "docker: Error response from daemon: Conflict. The container name \"/$name\" is already in use." >&2
    exit 125
  fi
  id=$(printf '%064d' $$)
  mkdir -p "$engine"
  {
    printf '{\n "Id": "%s",\n "Name": "/%s",\n "Image": "@id@",\n' "$id" "$name"
    printf ' "State": {"Status": "running", "Running": true, "ExitCode": 0,'
    printf ' "StartedAt": "2026-01-01T00:00:00Z", "FinishedAt": "0001-01-01T00:00:00Z"},\n'
    printf ' "Config": {"Labels": {%s}}\n}\n' "$labels"
  } >"$engine/$id-$name"
  for mount in $mounts; do
    source=${mount#*source=} target=${mount#*target=}
    source=${source%%,*} target=${target%%,*}
    case $target in /run/toolkit/*) mkdir -p "$target" && mount --bind "$source" "$target" ;; esac
  done
  [ -z "$serves" ] || {
    setsid @sshd@ -D -e -f /run/toolkit/conf/sshd_config </dev/null >/dev/null 2>"$engine/.log" &
    echo $! >"$engine/.pid"
  }
  echo "$id" ;;
rm)
  for one; do case $one in -*) ;; *) cut "$one" && command rm -f "$found" ;; esac; done
  [ -f "$engine/.pid" ] || exit 0
  read -r pid <"$engine/.pid"; kill "$pid"
  while kill -0 "$pid" 2>&-; do sleep 0.05; done
  while read -r _ at _; do case $at in /run/toolkit*) echo "$at" ;; esac; done </proc/self/mounts | sort -r |
    while read -r at; do umount "$at"; done
  command rm -rf "$engine" ;;
logs) show "$engine/.log" ;;
exec)
  shift
  while :; do
    case $1 in
    --env|-e) export "$2"; shift 2 ;;
    --user|--workdir|-u|-w) shift 2 ;;
    -*) shift ;;
    *) break ;;
    esac
  done
  shift
  exec "$@" ;;
*) exit 0 ;;
esac
"""
MPIRUN = r"""#!/bin/sh
# mpirun for one rank per host: each starts by the agent, and on main as a child.
while [ "$1" != python3 ]; do
  case $1 in -H) hosts=$2; shift ;; -np) size=$2; shift ;; esac
  shift
done
rank=0
IFS=,
for host in $hosts; do
  unset IFS
  words="env OMPI_COMM_WORLD_RANK=$rank OMPI_COMM_WORLD_SIZE=$size"
  words="$words OMPI_COMM_WORLD_LOCAL_RANK=0 OMPI_COMM_WORLD_LOCAL_SIZE=1 $*"
  if [ "${host%%:*}" = "$(hostname)" ]; then $words & else
    sh /run/toolkit/inside/kubexec.sh "${host%%:*}" "$words" </dev/null &
  fi
  ranks="$ranks $!" rank=$((rank + 1))
done
status=0
for one in $ranks; do wait "$one" || status=$?; done
exit $status
"""
# $1 folder of the host, $2 folder of all hosts, $3 home, $4 name, $5 sshd.
START = """
set -e
hostname "$4"
mount --bind "$1/home" "$3"
mount --bind "$2/passwd" /etc/passwd
mount -t tmpfs -o mode=755 none /run && mkdir /run/sshd
mount -t tmpfs -o mode=1777 none /dev/shm
exec "$5" -D -e -f "$1/sshd_config" 2>"$1/sshd.log"
"""


@dataclass(frozen=True)
class Cluster:
    """The hosts and how to reach them.

    Args:
        file: a hosts.yaml; config: an SSH configuration for OpenSSH's own client.
    """

    folder: Path
    names: tuple[str, ...]
    file: Path
    config: Path

    def received(self) -> int:
        """Return the bytes that main has received through its network card."""
        words = ["ip", "-n", NET, "-s", "-j", "link", "show", "port1"]
        return int(json.loads(_run(*words))[0]["stats64"]["tx"]["bytes"])

    def logins(self) -> int:
        """Return the number of logins on the jump host."""
        return (self.folder / "gate/sshd.log").read_text().count("Accepted publickey")


def why_not() -> str:
    """Return the reason why this machine cannot run them, empty if it can."""
    if os.geteuid():
        return "creating networks requires root"
    return "" if _sshd() else "it requires the program sshd (apt-get install openssh-server)"


def _sshd() -> str:
    return shutil.which("sshd") or shutil.which("sshd", path="/usr/sbin:/usr/local/sbin") or ""


def _run(*words: str) -> str:
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout


def address(number: int) -> str:
    """Return the address of a host, the first of which has number 1."""
    return f"10.210.{number // 250}.{number % 250 + 1}"


@contextmanager
def many(count: int, jump: bool = False) -> Iterator[Cluster]:
    """Start N hosts, with ``jump`` behind one more host, and stop them at the end."""
    with ExitStack() as ends:
        folder = Path(ends.enter_context(tempfile.TemporaryDirectory(prefix="toolkit-many-")))
        home = pwd.getpwuid(0).pw_dir
        _common(folder)
        before = _run("sysctl", "-n", NEIGHBORS).strip()
        _run("sysctl", "-qw", f"{NEIGHBORS}={max(int(before), 4 * count * count)}")
        ends.callback(_run, "sysctl", "-qw", f"{NEIGHBORS}={before}")
        _run("ip", "netns", "add", NET)
        ends.callback(_run, "ip", "netns", "del", NET)
        _run("ip", "-n", NET, "link", "add", "switch", "type", "bridge")
        _run("ip", "-n", NET, "link", "set", "switch", "up")
        _run("ip", "link", "add", NET, "type", "veth", "peer", "name", "client", "netns", NET)
        # A namespace loses its cards some time after its removal.
        ends.callback(_run, "ip", "link", "del", NET)
        _run("ip", "addr", "add", f"{HERE}/16", "dev", NET)
        _run("ip", "link", "set", NET, "up")
        _run("ip", "-n", NET, "link", "set", "client", "master", "switch", "up")
        names = tuple(f"gpu{number}" for number in range(1, count + 1))
        places = {name: (str(n), address(n)) for n, name in enumerate(names, 1)}
        if jump:
            places["gate"] = ("0", GATE)
        _wait(folder, {name: _start(ends, folder, home, name, *place) for name, place in places.items()})
        keys = {name: (folder / name / "key.pub").read_text().split()[:2] for name in places}
        known = folder / "known_hosts"
        known.write_text("".join(f"{places[name][1]} {' '.join(key)}\n" for name, key in keys.items()))
        yield Cluster(folder, names, _file(folder, names, jump), _config(folder, names, jump))


def _common(folder: Path) -> None:
    """Write what all hosts share: a key, the replies of Docker, and the user database."""
    _run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / "login"))
    image = json.loads(RECORDED.read_text())
    image[0]["RepoTags"] = [IMAGE]
    env = image[0]["Config"]["Env"]
    env[:] = [*(word for word in env if not word.startswith("PATH=")), f"PATH={_path(folder)}"]
    info = {
        "ID": "many",
        "ServerVersion": "26.1.5",
        "Driver": "overlay2",
        "DockerRootDir": "/var/lib/docker",
        "SecurityOptions": ["name=seccomp,profile=builtin"],
        "Runtimes": {"runc": {"path": "runc"}},
        "DefaultRuntime": "runc",
        "CgroupDriver": "cgroupfs",
        "CgroupVersion": "2",
        "OperatingSystem": "Debian GNU/Linux 12 (bookworm)",
    }
    programs = folder / "bin"
    programs.mkdir()
    # Not a shim of pyenv, which starts a shell.
    (programs / "python3").symlink_to(Path(sys.executable).resolve())
    (programs / "mpirun").write_text(MPIRUN)
    (programs / "mpirun").chmod(0o755)
    text = DOCKER.replace("@id@", image[0]["Id"]).replace("@sshd@", _sshd())
    for name, reply in (("@info@", info), ("@image@", image)):
        text = text.replace(name, shlex.quote(json.dumps(reply)))
    (programs / "docker").write_text(text)
    (programs / "docker").chmod(0o755)
    users = Path("/etc/passwd").read_text()
    if "\nsshd:" not in users:
        users += "sshd:x:105:65534::/run/sshd:/usr/sbin/nologin\n"
    (folder / "passwd").write_text(users)


def _path(folder: Path) -> str:
    return f"{folder}/bin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def _start(
    ends: ExitStack, folder: Path, home: str, name: str, port: str, ip: str
) -> subprocess.Popen[bytes]:
    own, space, program = folder / name, f"{NET}-{port}", _sshd()
    (own / "home").mkdir(parents=True)
    _run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(own / "key"))
    # Of an sshd that was unpacked, not installed.
    libraries = f"LD_LIBRARY_PATH={found}" if (found := os.environ.get("LD_LIBRARY_PATH")) else ""
    (own / "sshd_config").write_text(
        f"ListenAddress {ip}\nHostKey {own}/key\nAuthorizedKeysFile {folder}/login.pub\n"
        "PermitRootLogin yes\nStrictModes no\nUsePAM no\nPidFile none\nPrintMotd no\nUseDNS no\n"
        f"SetEnv PATH={_path(folder)} {libraries}\n"
    )
    _run("ip", "netns", "add", space)
    ends.callback(_run, "ip", "netns", "del", space)
    link = ("type", "veth", "peer", "name", "card", "netns", space)
    _run("ip", "-n", NET, "link", "add", f"port{port}", *link)
    _run("ip", "-n", NET, "link", "set", f"port{port}", "master", "switch", "up")
    _run("ip", "-n", space, "addr", "add", f"{ip}/16", "dev", "card")
    _run("ip", "-n", space, "link", "set", "card", "up")
    _run("ip", "-n", space, "link", "set", "lo", "up")
    apart = ("unshare", "--mount", "--uts", "--pid", "--fork", "--mount-proc", "--kill-child")
    words = ("sh", "-c", START, "sh", str(own), str(folder), home, name, program)
    process = subprocess.Popen(["ip", "netns", "exec", space, *apart, *words])
    ends.callback(process.wait)
    ends.callback(process.kill)
    return process


def _wait(folder: Path, processes: dict[str, subprocess.Popen[bytes]]) -> None:
    until, left = time.monotonic() + SECONDS, set(processes)
    while left:
        logs = {name: folder / name / "sshd.log" for name in left}
        left -= {name for name, log in logs.items() if log.exists() and "listening" in log.read_text()}
        for name in sorted(left):
            if processes[name].poll() is not None:
                sys.exit(f"sshd did not start on {name}: {logs[name].read_text().strip()}")
        assert time.monotonic() < until, f"no sshd after {SECONDS:g} s on {len(left)} hosts"
        time.sleep(0.05)


def _file(folder: Path, names: tuple[str, ...], jump: bool) -> Path:
    hosts = {
        name: {
            "address": address(number),
            "user": "root",
            "identity_file": str(folder / "login"),
            "slots": 1,
            **({"jump": f"root@{GATE}"} if jump else {}),
        }
        for number, name in enumerate(names, 1)
    }
    about = {
        "cluster": "many",
        "image": IMAGE,
        "transport": "ssh",
        "known_hosts": str(folder / "known_hosts"),
        "hosts": hosts,
    }
    path = folder / "hosts.yaml"
    path.write_text(yaml.safe_dump(about, sort_keys=False))
    return path


def _config(folder: Path, names: tuple[str, ...], jump: bool) -> Path:
    lines = [f"Host {name}\n HostName {address(number)}" for number, name in enumerate(names, 1)]
    lines += [f"Host gate\n HostName {GATE}"]
    lines += ["Host gpu*\n ProxyJump gate"] if jump else []
    lines += [f"Host *\n User root\n IdentityFile {folder}/login\n IdentitiesOnly yes\n BatchMode yes"]
    # As toolkit: OpenSSH's default, a post-quantum exchange, takes six times the processor time.
    lines += [" KexAlgorithms curve25519-sha256"]
    lines += [f" UserKnownHostsFile {folder}/known_hosts\n GlobalKnownHostsFile none\n"]
    path = folder / "ssh_config"
    path.write_text("\n".join(lines))
    return path
