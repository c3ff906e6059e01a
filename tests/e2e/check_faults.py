"""Faults as shell for a practice host: what makes each, and what takes it back."""

from __future__ import annotations

import io
import json
import tarfile
from dataclasses import dataclass

from tests.e2e.world import on, sh


@dataclass(frozen=True)
class Fault:
    """A fault made as root on a host, how it is undone, and the finding that `check` must report.

    Args:
        check: id of the check that finds it; empty for a step on the way to another fault.
    """

    check: str
    make: str
    mend: str
    words: str = ""
    verdict: str = "error"
    host: str = "box2"


def _comes(process: str) -> str:
    """Shell that waits until pgrep finds a process: it has its program's name some time after its start."""
    return (
        f"for i in $(seq 600); do {process} >/dev/null && break; sleep 0.1; done;"
        f" {process} >/dev/null || echo 'NOT MADE: {process}'"
    )


# The engine: stopped and started as its host started it, and whatever ran goes on.

_STOP = """
tr '\\0' ' ' </proc/$(pidof dockerd)/cmdline >/root/dockerd.line
docker ps -q >/root/dockerd.ran
kill $(pidof dockerd); while pidof dockerd >/dev/null; do sleep 0.05; done
"""
_START = """
setsid sh -c "exec $(cat /root/dockerd.line) $1" >/root/dockerd.log 2>&1 &
for i in $(seq 1200); do docker info >/dev/null 2>&1 && break; sleep 0.1; done
"""
_GO_ON = "xargs -r docker start </root/dockerd.ran >/dev/null; rm -f /root/dockerd.*"

ENGINE = (
    Fault("docker", "mv /usr/bin/docker /root/", "mv /root/docker /usr/bin/", "docker is not on the PATH"),
    Fault("docker", "gpasswd -d trainer docker", "gpasswd -a trainer docker", "cannot use docker"),
    Fault("docker", _STOP, f"set --; {_START}{_GO_ON}", "the docker engine is not running"),
)

_STATE_HOME = "/home/trainer/.local/state"
_OVER_STATE = f"install -d -o trainer -g trainer /home/trainer/.local {_STATE_HOME}; mount -t tmpfs -o "
_BASHRC = "/home/trainer/.bashrc"
_SSH = "/home/trainer/.ssh"


def engine_elsewhere(address: str, key: str, known: str) -> Fault:
    """The docker commands of box2 reach the engine of another host, as with a forgotten DOCKER_HOST."""
    make = f"""
cp -p {_BASHRC} /root/; sed -i '1i export DOCKER_HOST=ssh://trainer@{address}' {_BASHRC}
printf '%s' '{key}' >{_SSH}/id_ed25519; printf '%s' '{known}' >{_SSH}/known_hosts
chmod 600 {_SSH}/id_ed25519; chown trainer: {_SSH}/*
"""
    return Fault("docker-here", make, f"mv /root/.bashrc {_BASHRC}; rm {_SSH}/id_ed25519 {_SSH}/known_hosts")


# A small disk with room for few files, and an engine with the settings that spoil jobs.
_BAD_ENGINE = f"""
{_STOP}
mkdir -p /mnt/small && mount -t tmpfs -o size=60m,nr_inodes=1500 none /mnt/small
set -- '--data-root=/mnt/small --storage-driver=vfs --log-driver=none --userns-remap=trainer
  --add-runtime=other=/usr/sbin/runc --default-runtime=other'
set -- "$(echo $1)"
cp -p /etc/subuid /etc/subgid /root/
echo trainer:100000:65536 >/etc/subuid; echo trainer:100000:65536 >/etc/subgid
{_START}
"""
_GOOD_ENGINE = f"""
kill $(pidof dockerd); while pidof dockerd >/dev/null; do sleep 0.05; done
umount -l /mnt/small; rmdir /mnt/small
mv /root/subuid /root/subgid /etc/
set --; {_START}{_GO_ON}
"""

TINY = "toolkit-test-tiny:1"  # an image without content, for labels and names alone
_IMPORT = f"cd /root && echo $1 >content && tar -c content | docker import - {TINY}; rm content"

TOGETHER: tuple[tuple[Fault, ...], ...] = (
    (
        Fault(
            "cluster-name",
            f"set -- foreign; {_IMPORT}; docker create --name toolkit-checked-theirs"
            f" --label toolkit.cluster=checked --label toolkit.owner=mallory {TINY} x",
            f"docker rm toolkit-checked-theirs; docker image rm {TINY}",
            "of user mallory already exists",
        ),
    ),
    (
        Fault("docker-storage", _BAD_ENGINE, _GOOD_ENGINE, "vfs", "warning"),
        Fault("docker-users", "", "", "userns-remap"),
        Fault("docker-logs", "", "", "keeps no container logs"),
        Fault("docker-runtime", "", "", "with the container runtime other", "warning"),
        Fault("disk-image", "", "", "the image needs up to"),
        Fault("disk-inodes", "", "", "more files, so containers can fail to start"),
    ),
    (
        Fault("programs", "mv /usr/bin/sha256sum /root/", "mv /root/sha256sum /usr/bin/", "no sha256sum"),
        Fault(
            "limits",
            f"cp -p {_BASHRC} /root/; sed -i '1i ulimit -Sn 60' {_BASHRC}",
            f"mv /root/.bashrc {_BASHRC}",
            "the limit 'max open files' of SSH sessions is 60",
            "warning",
        ),
        Fault(
            "disk-home",
            "stat -c %a /home/trainer >/root/mode; chmod 555 /home/trainer",
            "chmod $(cat /root/mode) /home/trainer; rm /root/mode",
            "cannot write to the home folder",
            "warning",
        ),
        Fault(
            "disk-state",
            f"{_OVER_STATE}ro,mode=777 none {_STATE_HOME}",
            f"umount {_STATE_HOME}",
            "mounted read-only",
        ),
    ),
    (
        Fault(
            "disk-state",
            f"{_OVER_STATE}noexec,mode=777 none {_STATE_HOME}",
            f"umount {_STATE_HOME}",
            "noexec",
        ),
    ),
    (
        Fault(
            "disk-state",
            f"{_OVER_STATE}size=64k,mode=777 none {_STATE_HOME}",
            f"umount {_STATE_HOME}",
            "free for SSH keys and job records",
        ),
    ),
)

# Common on plain machines, and no matter here: containers have names and a hosts file of their own.
HARMLESS = (
    Fault("", "hostname box1", "hostname box2"),
    Fault(
        "",
        "cp /etc/hosts /root/; echo 127.0.1.1 box2 box1 >>/etc/hosts",
        "cat /root/hosts >/etc/hosts; rm /root/hosts",
    ),
)

NO_STATE = Fault(
    "disk-state",
    f"{_OVER_STATE}mode=755 none {_STATE_HOME}",
    f"umount {_STATE_HOME}",
)

# Mounts: in order on box1, each with a fault of its own on box2.

MOUNTED = (
    *(("/data/absent", ""), ("/data/dangling", ""), ("/data/kind", ":ro"), ("/data/closed", ":ro")),
    *(("/data/unwritable", ""), ("/data/readonly", ""), ("/data/full", ""), ("/data/links", ":ro")),
    ("/data/fine", ""),
)
MAKE_MOUNTS = f"mkdir -p {' '.join(source for source, _ in MOUNTED)}; chmod 777 /data/*"
MEND_MOUNTS = "rm -rf /data"
BAD_MOUNTS = Fault(
    "",
    f"""
{MAKE_MOUNTS}
rmdir /data/absent /data/dangling /data/kind
ln -s /nowhere /data/dangling; touch /data/kind
chmod 700 /data/closed; chmod 755 /data/unwritable
mount -t tmpfs -o ro,mode=777 none /data/readonly
mount -t tmpfs -o size=40k,mode=777 none /data/full
ln -s /mnt/big/train /data/links/train; ln -s ../fine/x /data/links/inside; ln -s /usr/share /data/links/usr
""",
    "umount /data/readonly /data/full; rm -rf /data",
)
MOUNT_FINDINGS = (
    ("mount-there", "error", "box2", "/data/absent does not exist"),
    ("mount-there", "error", "box2", "/data/dangling is a broken symbolic link"),
    ("mount-same", "error", "", "does not have the same type on all hosts: directory on box1; file on box2"),
    ("mount-access", "error", "box2", "cannot read /data/closed"),
    ("mount-access", "warning", "box2", "cannot write to /data/unwritable: trainer has no write permission"),
    (
        "mount-access",
        "warning",
        "box2",
        "cannot write to /data/readonly: the file system is mounted read-only",
    ),
    ("mount-room", "error", "box2", "the file system of /data/full is almost full"),
    ("mount-links", "warning", "box2", "train -> /mnt/big/train"),
)


def tiny_image(host: str, content: str) -> Fault:
    return Fault("", f"set -- {content}; {_IMPORT}", f"docker image rm {TINY}", host=host)


def archive(name: str, arch: str) -> bytes:
    """An image without layers as `docker save` would write it."""
    config = {"architecture": arch, "os": "linux", "config": {}, "rootfs": {"type": "layers", "diff_ids": []}}
    manifest = [{"Config": "config.json", "RepoTags": [name], "Layers": []}]
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for path, content in (("config.json", config), ("manifest.json", manifest)):
            data = json.dumps(content).encode()
            member = tarfile.TarInfo(path)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return packed.getvalue()


# Leftovers of toolkit on box2, and beside them what must stay.


def _container(name: str, cluster: str, owner: str = "trainer", more: str = "") -> str:
    labels = f"--label toolkit.cluster={cluster} --label toolkit.owner={owner} --label toolkit.host=box2"
    return f"docker create --name {name} {labels} {more} {TINY} x >/dev/null\n"


STATE = f"{_STATE_HOME}/toolkit"
LEFTOVERS = (
    tiny_image("box2", "left"),
    Fault(
        "",
        _container("toolkit-gone-worker", "gone")
        + _container("toolkit-gone-mallory", "gone", "mallory")
        + f"docker create --name bystander {TINY} x >/dev/null\n"
        # Whole, whatever was done on this host before: the first `up` makes these folders otherwise.
        + "".join(
            f"su trainer -c 'mkdir -p {STATE}/{name}/box2'\n" for name in ("gone-too", "kept", "checked")
        )
        + _container("toolkit-kept-worker", "kept")
        + _container("toolkit-checked-worker", "checked")
        + f"su trainer -c 'echo 0.0.1 >{STATE}/checked/box2/version'\n",
        "docker rm -f toolkit-gone-mallory toolkit-kept-worker toolkit-checked-worker toolkit-gone-worker\n"
        "docker rm -f bystander\n"
        f"cd {STATE} && rm -rf gone-too kept checked",
    ),
    Fault(
        "",
        # Two of a job that is over, one of a job that runs, one of another cluster.
        "for n in 1 2; do TOOLKIT_CLUSTER=checked TOOLKIT_JOB=20260101-000000-over-aaaa"
        " setsid su -m trainer -s /bin/sh -c 'exec sleep 301' & done\n"
        "TOOLKIT_CLUSTER=checked TOOLKIT_JOB=20260101-000000-runs-bbbb"
        " setsid su -m trainer -s /bin/sh -c 'exec sleep 302' &\n"
        "TOOLKIT_CLUSTER=other TOOLKIT_JOB=20260101-000000-over-cccc"
        " setsid su -m trainer -s /bin/sh -c 'exec sleep 303' &\n"
        + "\n".join(_comes(f"pgrep -x -u trainer -f sleep.{n}") for n in (302, 303))
        + "\nfor i in $(seq 600); do"
        " [ $(pgrep -x -u trainer -fc 'sleep 301') = 2 ] && break; sleep 0.1; done",
        'for n in 1 2 3; do pids=$(pgrep -x -u trainer -f "sleep 30$n"); [ -z "$pids" ] || kill $pids; done',
    ),
    Fault(
        "",
        "TOOLKIT_CLUSTER=checked TOOLKIT_SUPERVISOR=20260101-000000-runs-bbbb"
        " setsid su -m trainer -s /bin/sh -c 'exec sleep 304' &\n"
        + _comes("pgrep -x -u trainer -f sleep.304"),
        "kill $(pgrep -x -u trainer -f 'sleep 304')",
        host="box1",
    ),
)


def left() -> tuple[frozenset[str], tuple[str, ...]]:
    """Containers and marked processes on box2."""
    names = on("box2", "docker", "ps", "-a", "--filter", f"ancestor={TINY}", "--format", "{{.Names}}").split()
    found = sh("box2", 'for n in 1 2 3; do pgrep -x -u trainer -fc "sleep 30$n"; done').split()
    return frozenset(names), tuple(found)


_STAY = {"toolkit-gone-mallory", "toolkit-kept-worker", "toolkit-checked-worker", "bystander"}
LEFT_BEFORE = (frozenset(_STAY | {"toolkit-gone-worker"}), ("2", "1", "1"))
LEFT_AFTER = (frozenset(_STAY), ("0", "1", "0"))

# In place of nvidia-smi: two cards of a driver that does not know the newer columns.

_FAKE = r"""#!/bin/sh
case $1 in
--query-gpu=index,uuid,name,driver_version,memory.total)
  echo '0, GPU-a, Tesla V100-SXM2-16GB, 470.256.02, 16160'
  echo '1, GPU-b, Tesla V100-SXM2-16GB, 470.256.02, 16160' ;;
--query-gpu=*)
  columns=${1#*=}
  for unknown in compute_cap gpu_recovery_action reset_status.reset_required; do
    case ,$columns, in *,$unknown,*) echo "Field \"$unknown\" is not a valid field to query."; exit 2 ;; esac
  done
  echo "$columns" | sed 's/,/, /g; s/memory.used/memory.used [MiB]/'
  for i in 0 1; do
    echo "$i, GPU-$(echo $i | tr 01 ab), 00000000:$i.0, Tesla V100-SXM2-16GB, 470.256.02, Enabled, Default," \
      "Disabled, 4, 3, 3, 16, 16, $((i * 3)), No, 0x0000000000000001"
  done ;;
-L)
  echo 'GPU 0: Tesla V100-SXM2-16GB (UUID: GPU-a)'
  echo 'GPU 1: Tesla V100-SXM2-16GB (UUID: GPU-b)' ;;
--query-compute-apps=*)
  echo "GPU-a, $(pgrep -x -u trainer -f 'sleep 305'), 512" ;;
*) echo "Invalid combination of input arguments."; exit 2 ;;
esac
"""
FAKE_GPU = Fault(
    "",
    f"cat >/usr/local/bin/nvidia-smi <<'END'\n{_FAKE}END\nchmod 755 /usr/local/bin/nvidia-smi\n"
    f"setsid su trainer -s /bin/sh -c 'exec sleep 305' &\n{_comes('pgrep -x -u trainer -f sleep.305')}",
    "rm -f /usr/local/bin/nvidia-smi; kill $(pgrep -x -u trainer -f 'sleep 305')",
)

# What a running job of another user's cluster shows of itself: the path is the one inside its container.
CLAIM = Fault(
    "",
    "mkdir -p /run/toolkit/inside; echo 'import time; time.sleep(600)' >/run/toolkit/inside/run.py\n"
    "setsid setpriv --reuid nobody --clear-groups python3 /run/toolkit/inside/run.py job.lease j1"
    " --cluster theirs --owner mallory --slots 0 --gpus GPU-b >/dev/null 2>&1 & echo $! >/run/claim.pid\n"
    # setsid and setpriv have these words on their command lines too, before they become the program.
    f"{_comes('pgrep -u nobody -f ^python3./run/toolkit/inside/run.py.job.lease')}",
    "kill $(cat /run/claim.pid); rm -r /run/toolkit/inside /run/claim.pid",
)
