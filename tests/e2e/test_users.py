"""Any user: root, awkward names, homes, shells and files, arguments of every kind, a home that is shared."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e import faults
from tests.e2e.world import Toolkit, containers, on, outer, sh
from toolkit.lab.topology import SHARED

pytestmark = pytest.mark.lab

HOSTS = ("box1", "box2")

# Prints what arrived, in letters that every way back leaves alone.
SHOW = """\
import getpass, json, os, pwd, sys
def hexed(words): return [os.fsencode(word).hex() for word in words]
me = {"rank": os.environ["RANK"], "args": hexed(sys.argv[1:]), "user": getpass.getuser()}
me |= {"files": sorted(hexed(f for _, _, names in os.walk(".") for f in names))}
me |= {"name": pwd.getpwuid(os.getuid()).pw_name, "home": os.path.expanduser("~")}
me |= {"groups": len(os.getgroups())}
open("/re sults, 'ü'/" + me["rank"], "w").write(me["user"])
open("re sult ü", "w").write("kept")
print(json.dumps(me))
"""
# No shell and no launcher on the way may take these for anything but text; the last is no UTF-8.
AWKWARD = [
    *("two words", "it's", '"quoted"', "$HOME $(id) `id`", ";", "a\nb\n", "\\back\\n", "", "*", "--np=9"),
    *("=ls", "%self", "!x", "~", "{a,b}", "ü 日本", "\t", "\udcff\udcfe"),
]
NOISE = "echo 'Welcome, {'; echo 'and mind the step' >&2; printf 'no newline'\n"


def hexed(words: Sequence[str]) -> list[str]:
    return [word.encode(errors="surrogateescape").hex() for word in words]


@contextmanager
def account(
    host: str, name: str, home: str, shell: str, uid: int, groups: Sequence[str] = ()
) -> Iterator[None]:
    """A user of the practice host who may log in with the lab's key and use docker."""
    lines = "".join(f"{group}:x:{uid + 1 + number}:{name}\n" for number, group in enumerate(groups))
    make = r"""
set -e; name=$1 home=$2 shell=$3 uid=$4
cp -p /etc/group /run/group.before
useradd --badname --no-user-group --gid docker --groups docker --uid "$uid" --shell "$shell" \
    --home-dir "$home" --no-create-home --password '*' "$name" 2>/dev/null
mkdir -p "$home/.ssh"; cp ~trainer/.ssh/authorized_keys "$home/.ssh/"
chown -R "$uid" "$home"; chmod 700 "$home" "$home/.ssh"
"""
    assert on(host, "sh", "-c", make, "sh", name, home, shell, str(uid)) == ""
    subprocess.run(
        ["docker", "exec", "-i", outer(host), "tee", "-a", "/etc/group"],
        input=lines.encode(),
        check=True,
        capture_output=True,
    )
    try:
        yield
    finally:
        on(
            host,
            "sh",
            "-c",
            'userdel "$1"; cp -p /run/group.before /etc/group; rm -rf "$2"',
            "sh",
            name,
            home,
        )


def write(host: str, owner: int, path: str, text: str) -> None:
    put = 'mkdir -p "${1%/*}" && cat >"$1" && chown -R "$2" "${1%/*}"'
    subprocess.run(
        ["docker", "exec", "-i", outer(host), "sh", "-c", put, "sh", path, str(owner)],
        input=text.encode(),
        check=True,
    )


def cluster(
    two: Toolkit, folder: Path, name: str, user: str, file: str = "hosts.yaml", **changes: Any
) -> Toolkit:
    """A cluster of its own name and user on the session's hosts."""
    data = yaml.safe_load(two.hosts.read_text()) | {"cluster": name} | changes
    for host in data["hosts"].values():
        host["user"] = user
    toolkit = Toolkit(folder / file, folder)
    toolkit.hosts.write_text(yaml.safe_dump(data, allow_unicode=True), encoding="utf-8")
    return toolkit


@contextmanager
def down_if_it_fails(toolkit: Toolkit) -> Iterator[None]:
    try:
        yield
    except BaseException:
        toolkit.run("down", "--no-save")
        raise


def ranks(out: str) -> list[dict[str, Any]]:
    """Return what SHOW has printed, by rank."""
    rows: list[dict[str, Any]] = [json.loads(line.partition("] ")[2]) for line in out.splitlines()]
    return sorted(rows, key=lambda row: str(row["rank"]))


@pytest.mark.rare
def test_root(two: Toolkit, tmp_path: Path) -> None:
    with ExitStack() as stack:
        for host in HOSTS:
            sh(
                host,
                "install -d -m 700 /root/.ssh; cp ~trainer/.ssh/authorized_keys /root/.ssh/; mkdir /srv/out",
            )
            stack.callback(sh, host, "rm -rf /root/.ssh /srv/out")
        root = cluster(two, tmp_path, "rooted", "root", mounts=["/srv/out:/out"])
        root.run("up", check=True)
        stack.enter_context(down_if_it_fails(root))
        assert root.run("smoke", "--json", check=True).json["ok"]
        # The commands of a rank have no Linux capabilities, also where sshd needs some.
        text = "echo $(whoami) $HOME $(grep -E '^Cap(Prm|Eff|Inh|Amb)' /proc/self/status | tr -d '\\t\\n')"
        text += " >/out/$RANK; ssh -V 2>/dev/null; touch ~/note"
        root.run("run", "--launcher", "mpirun", "--", "sh", "-c", text, check=True)
        for rank, host in enumerate(HOSTS):
            none = "".join(f"{name}:{0:016x}" for name in ("CapInh", "CapPrm", "CapEff", "CapAmb"))
            printed = f"root\nroot /root {none}\n"
            assert sh(host, f"stat -c %U /srv/out/{rank}; cat /srv/out/{rank}") == printed
        root.run("down", check=True)
        for host in HOSTS:
            assert containers(host, "rooted") == []
            assert sh(host, "find /root/.local -name '*rooted*' 2>/dev/null") == ""


@pytest.mark.rare
def test_awkward_names_homes_shells_groups_mounts_files_and_arguments(two: Toolkit, tmp_path: Path) -> None:
    name, home, source = "odd@corp.example.com", "/home/tr ainer ü", "/srv/da ta, 'ü'"
    groups = [f"domain users {number}" for number in range(64)]
    work = tmp_path / "pro ject 'ü'"
    (work / "sub folder").mkdir(parents=True)
    (work / "sh ow ü.py").write_text(SHOW)
    files = ["new\nline", "quo'te\"", "$HOME", "latin-\udcfc", "-dash", "sub folder/ü;x"]
    for file in files:
        (work / file).write_text("x")
    with ExitStack() as stack:
        for host, shell in zip(HOSTS, ("/usr/bin/zsh", "/usr/bin/fish"), strict=True):
            stack.enter_context(account(host, name, home, shell, 1700, groups))
            on(host, "install", "-d", "-o", "1700", "-m", "700", source)
            stack.callback(on, host, "rm", "-rf", source)
        write("box1", 1700, f"{home}/.zshenv", NOISE)
        write("box2", 1700, f"{home}/.config/fish/config.fish", NOISE)
        mounts = [{"source": source, "target": "/re sults, 'ü'"}]
        odd = cluster(two, work, "odd", name, "ho sts ü.yaml", mounts=mounts)
        odd.run("up", check=True)
        stack.enter_context(down_if_it_fails(odd))
        for launcher in ("horovodrun", "mpirun", "torchrun"):
            done = odd.run("run", "--launcher", launcher, "sh ow ü.py", *AWKWARD, check=True)
            rows = ranks(done.out)
            assert [row["args"] for row in rows] == [hexed(AWKWARD)] * 2, launcher
            # Not the hosts file: it can contain secrets.
            sent = {Path(file).name for file in files} | {"sh ow ü.py"}
            assert all(row["files"] == sorted(hexed(list(sent))) for row in rows)
            assert {(row["user"], row["name"], row["home"]) for row in rows} == {("odd", "odd", "/home/odd")}
            assert {row["groups"] for row in rows} == {65}

        for rank, host in enumerate(HOSTS):
            assert on(host, "stat", "-c", "%u", f"{source}/{rank}") == "1700\n"
        assert odd.run("exec", "--", "ssh", "box2", "whoami", check=True).out == "odd\n"
        listed = odd.run("exec", "--", "id", "-Gn", check=True).out
        assert "domain users 63" in listed and "docker" in listed

        odd.run("down", check=True)
        assert len(list((work / "runs" / "odd").rglob("re sult ü"))) == 6
        for host in HOSTS:
            assert containers(host, "odd") == []
            assert on(host, "find", f"{home}/.local/state") == f"{home}/.local/state\n"


@pytest.mark.rare
def test_an_account_that_runs_no_command(two: Toolkit, tmp_path: Path) -> None:
    data = yaml.safe_load(two.hosts.read_text()) | {"cluster": "locked"}
    data["hosts"]["box2"]["user"] = "locked"
    locked = Toolkit(tmp_path / "hosts.yaml", tmp_path)
    locked.hosts.write_text(yaml.safe_dump(data))
    forced = 'command="echo only for backups"'
    with account("box2", "locked", "/home/locked", "/usr/sbin/nologin", 1701):
        for change, words in (
            ("true", "; output: This account is currently not available."),
            (f"usermod -s /bin/sh locked; sed -i '1s/^/{forced} /' .ssh/authorized_keys", "only for backups"),
            ("sed -i 's/echo only for backups/exit 3/' .ssh/authorized_keys", "but cannot run commands"),
        ):
            sh("box2", f"cd /home/locked; {change}")
            done = locked.run("up", "--prepare", "--json")
            failed = [o for o in done.json["outcomes"] if o["status"] == "failed"]
            assert done.status == 1 and [(o["host"], o["phase"]) for o in failed] == [("box2", "connect")]
            assert "user locked can log in but cannot run commands" in failed[0]["detail"]
            assert failed[0]["detail"].endswith(words)
            fix = failed[0]["fix"]
            assert "on box2: sudo usermod --shell /bin/bash locked" in fix and "ForceCommand" in fix
            own = {o["status"] for o in done.json["outcomes"] if o["host"] == "box1"}
            assert own and own <= {"ok", "skipped"}
    assert locked.run("down").status == 1
    assert [faults.something_of("locked", host) for host in HOSTS] == ["", ""]


@pytest.mark.rare
def test_a_home_that_two_hosts_share(two: Toolkit, tmp_path: Path) -> None:
    home = f"{SHARED}/home of all"
    state = f"{home}/.local/state/toolkit/shared"
    with ExitStack() as stack:
        for host in HOSTS:
            stack.enter_context(account(host, "sharer", home, "/bin/bash", 1702))
        write("box1", 1702, f"{home}/.bashrc", NOISE)
        shared = cluster(two, tmp_path, "shared", "sharer")
        shared.run("up", check=True)
        stack.enter_context(down_if_it_fails(shared))
        keys = on("box1", "grep", "-rl", "PRIVATE", state).split("\n")
        assert sorted(keys)[1:] == [
            f"{state}/box1/conf/id_ed25519",
            f"{state}/box2/conf/ssh_host_ed25519_key",
        ]
        assert on("box2", "ls", state) == "box1\nbox2\n", "it is one folder"
        done = shared.run(
            "run", "--launcher", "torchrun", "--", "sh", "-c", "echo $RANK >result-$RANK", check=True
        )
        assert done.status == 0
        # One host is away: what belongs to it stays, in the very folder that the other one tidies up.
        with faults.firewall("box2", "REJECT --reject-with tcp-reset"):
            down = shared.run("down", "--json")
        assert down.status == 1
        assert {o["status"] for o in down.json["outcomes"] if o["host"] == "box1"} <= {"ok", "skipped"}
        assert on("box1", "ls", state) == "box2\n"
        assert containers("box2", "shared") == ["toolkit-shared-worker"]
        # It restarts automatically with its keys, and `down` removes it.
        shared.run("up", check=True)
        assert shared.run("exec", "--", "ssh", "box2", "true").status == 0
        shared.run("down", check=True)
        assert on("box2", "find", f"{home}/.local/state") == f"{home}/.local/state\n"
        assert {p.name for p in (tmp_path / "runs").rglob("result-*")} == {"result-0", "result-1"}
