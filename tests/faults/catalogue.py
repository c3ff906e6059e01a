"""Every fault and every phase, a row each. `make faults REPORT=1` writes docs/internals/faults.md."""

from __future__ import annotations

import os
from dataclasses import replace

from tests.faults.model import (
    ANY,
    COMMAND,
    MAIN,
    WORKER,
    Answer,
    Before,
    Fault,
    Line,
    Login,
    Machine,
    Moment,
    NewFile,
    Operator,
    Phase,
    Process,
    Second,
    Shell,
    Signal,
    ToCommand,
)

# Where the hosts see one folder, and where each has a small disk of its own.
SHARED, DISK = "/srv/shared/faults", "/srv/faults-disk"
# Above what `toolkit check` takes for full.
DISK_BYTES = 160 << 20
FAKETIME = os.environ.get("TOOLKIT_TEST_FAKETIME", "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1")

PHASES = (
    Phase("connect", "up", Before(), "before `up` begins"),
    Phase("preflight", "up", Login(), "`up` has logged in, its questions are asked"),
    Phase(
        "start",
        "up",
        Line(r"(done|as is)  {host}: write SSH keys for logins between containers"),
        "containers start",
    ),
    Phase("send", "send", Process(mark="TOOLKIT_RELAY"), "an image is on its way"),
    Phase("launch-before", "run", Before(), "before `run` begins"),
    Phase("launch", "run", Process(mark="TOOLKIT_JOB"), "the first process of the job is there"),
    Phase("step", "run", NewFile(f"{SHARED}/{{case}}/step-[456]"), "the job has made some steps"),
    Phase("checkpoint", "run", NewFile(f"{SHARED}/{{case}}/half-*"), "rank 0 writes a checkpoint"),
    Phase("stop", "stop", NewFile("/home/trainer/.local/state/toolkit/tried/*/jobs/*/stopping"), "`stop`"),
    Phase("down", "down", Line(r"(done|as is)  \S+: "), "`down` has done something while a job runs"),
    Phase("moment-up", "up", Moment(), "any moment of `up`"),
    Phase("moment-run", "run", Moment(), "any moment of `run`"),
    Phase("moment-down", "down", Moment(), "any moment of `down`"),
)
PHASE = {phase.name: phase for phase in PHASES}

UP, RUN, END, MOMENTS = (
    ("connect", "preflight", "start"),
    ("launch", "step", "checkpoint"),
    ("stop", "down"),
    ("moment-up", "moment-run", "moment-down"),
)

_RANK = Process(r"train\.py", "TOOLKIT_RANK")
_RANK_PY = Process(r"^\S*python\S* \S*/run\.py job\.rank ", "TOOLKIT_JOB")
_LAUNCHER = Process(r"^(\S*mpirun|\S*python\S* \S*torchrun) ", "TOOLKIT_JOB")
_SUPERVISOR = Process(r"/run\.py job\.supervisor ", "TOOLKIT_SUPERVISOR")
_LEASE = Process(r"^\S*python\S* \S*/run\.py job\.lease ", "TOOLKIT_JOB")

# R1: a rank that dies ends the job everywhere within 3 s, and is named.
_CRASH = Answer(r"[1-9]\d*", ("failed",), r"\brank {rank} on {host}\b", notice=3, end=3, gone=3)
# R2: a lost host is reported within 5 s, reachable hosts are clean within 8 s, the lost one within 15 s.
_LOST = Answer(r"[1-9]\d*", ("failed",), r"\b{host} is lost\b", notice=5, end=8, gone=8, own=15)
# The message names the host; its other words do not matter.
_NAMED = replace(_LOST, cause=r"\b{host}\b")
# A host that has never answered is waited for as long as ssh takes to give up: 20 s.
_UNHEARD = replace(_NAMED, notice=22, end=25, gone=25, own=25)
_SURVIVES = Answer(states=("succeeded",))
# Main is lost: only the leases end the job, and the command can only report it.
_MAIN_GONE = Answer(r"[1-9]\d*", ("failed", "lost", "stopped"), r"\b{host}\b", gone=15, own=15)
# With `up`, `send`, `stop` and `down`: the command succeeds, or fails and names the host.
_MAY_FAIL = Answer(r"0|[1-9]\d*", cause=r"\b{host}\b")
_MUST_FAIL = Answer(r"[1-9]\d*", cause=r"\b{host}\b")
_WORKS = Answer("0")


def _in(phases: tuple[str, ...], answer: Answer) -> dict[str, Answer]:
    return dict.fromkeys(phases, answer)


_ALL = (*UP, "send", *RUN, *END)

# Shell of faults. The bystander's traffic passes: what is broken is the tried cluster's network.
_PASS = "-p tcp {} $PORT -j RETURN"


def _between(rules: str, chains: str = "INPUT OUTPUT") -> Shell:
    """Rules for what goes between this host and the others, in a chain of their own."""
    make = f"""
iptables -N FAULT || exit 1
iptables -A FAULT {_PASS.format("--sport")} && iptables -A FAULT {_PASS.format("--dport")} || exit 1
for peer in $PEERS; do for way in -s -d; do
{rules}
done; done
for chain in {chains}; do iptables -I $chain -j FAULT || exit 1; done
"""
    mend = f"""
for chain in {chains}; do iptables -D $chain -j FAULT; done
iptables -F FAULT; iptables -X FAULT
"""
    return Shell(make, mend)


_DROP = "iptables -A FAULT $way $peer -j DROP || exit 1"
_SSH = "INPUT -p tcp --dport 22 -s $OPERATOR -j"
# Of a connection that has ended on this side alone, of which the host has not heard.
_SESSION = r": process \d+@\d+ sshd(-session)?: trainer"
# As the host itself started it; containers that run are ended by an engine that comes back.
_ENGINE_LINE = "tr '\\0' '\\n' </proc/$(cat /run/docker.pid)/cmdline >/run/dockerd.args; "
_ENGINE_START = r"""
kill -9 $(cat /run/docker.pid) 2>/dev/null; sleep 0.2; rm -f /run/docker.pid
(IFS='
'; exec setsid $(cat /run/dockerd.args) >>/var/log/dockerd.log 2>&1 </dev/null) &
for i in $(seq 300); do timeout 5 docker info >/dev/null 2>&1 && exit 0; sleep 0.1; done; exit 1
"""
_SSHD = "kill -{} $(cat /run/sshd.pid)"
_SSHD_START = """
test -e /proc/$(cat /run/sshd.pid) && exit 0
setsid /usr/sbin/sshd -D -E /var/log/sshd.log </dev/null >/dev/null 2>&1 & sleep 0.3
"""

_COMMAND = (
    Fault(
        "command-kill",
        "send SIGKILL to the command",
        COMMAND,
        ToCommand(("KILL",)),
        {
            **_in((*UP, "send", *END), Answer("-9")),
            **_in(RUN, Answer("-9", ("succeeded", ""), goes_on=True)),
            **_in(MOMENTS, Answer("-9|0")),
            "moment-run": Answer("-9|0", goes_on=True),
        },
    ),
    Fault(
        "command-stop",
        "suspend the command for 3 s with SIGSTOP",
        COMMAND,
        ToCommand(("STOP", "CONT"), 3.0),
        {**_in((*UP, "send", *END), _WORKS), **_in(RUN, _SURVIVES)},
    ),
    Fault(
        "command-term",
        "send SIGTERM to the command",
        COMMAND,
        ToCommand(("TERM",)),
        {
            **_in((*UP, "send", *END), Answer("143|0")),
            **_in(RUN, Answer("143", ("succeeded", ""), goes_on=True)),
        },
    ),
    Fault(
        "command-hup",
        "close the terminal of the command (SIGHUP)",
        COMMAND,
        ToCommand(("HUP",)),
        {
            **_in((*UP, "send", *END), Answer("129|0")),
            **_in(RUN, Answer("129", ("succeeded", ""), goes_on=True)),
        },
    ),
    *(
        Fault(
            f"command-ctrl-c-{times}",
            f"press Ctrl-C {times} times" if times > 1 else "press Ctrl-C once",
            COMMAND,
            ToCommand(("INT",) * times, 0.4),
            {
                **_in((*UP, "send"), Answer("130|0")),
                **_in(RUN, Answer("130", ("stopped", ""), gone=20)),
                **_in(END, Answer("130|0")),
            },
        )
        for times in (1, 2, 3)
    ),
    Fault(
        "command-twice",
        "start the same command again while it runs",
        COMMAND,
        Second(),
        {"preflight": Answer(r"0|[13]"), **_in(("step",), _SURVIVES), **_in(END, Answer(r"0|[13]"))},
        settle=True,
    ),
    Fault(
        "command-wrong-key",
        "give the command a private key that a worker host does not accept",
        WORKER,
        Operator("key"),
        {"connect": _MUST_FAIL},
    ),
    Fault(
        "command-changed-key",
        "record a wrong SSH host key of a worker host in `known_hosts`",
        WORKER,
        Operator("known"),
        {"connect": _MUST_FAIL},
    ),
)

_PROCESSES = (
    Fault("rank-kill", "send SIGKILL to a rank", ANY, Signal(_RANK, "SIGKILL"), _in(RUN[1:], _CRASH)),
    Fault("rank-segv", "send SIGSEGV to a rank", ANY, Signal(_RANK, "SIGSEGV"), _in(RUN[1:], _CRASH)),
    Fault(
        "rank-exit",
        "let a rank exit with code 3",
        ANY,
        Shell("touch $SHARED/$CASE/exit-$RANK"),
        {"step": replace(_CRASH, cause=r"\brank {rank} on {host} exited with code 3")},
    ),
    Fault(
        "rank-memory",
        "let a rank use more memory than its container has",
        ANY,
        Shell(
            "docker update --memory 400m --memory-swap 400m $NAME && touch $SHARED/$CASE/balloon-$RANK",
            # An engine without swap accounting refuses -1; the limit goes with the container then.
            "docker update --memory 0 --memory-swap -1 $NAME || true",
        ),
        # How long it takes to fill the memory is not the toolkit's affair.
        {"step": replace(_CRASH, notice=20, end=20, gone=20)},
        settle=True,
    ),
    Fault(
        "rank-stop",
        "suspend a rank for 3 s with SIGSTOP",
        ANY,
        Signal(_RANK, "SIGSTOP", "SIGCONT"),
        _in(RUN[1:], _SURVIVES),
        hold=3,
    ),
    Fault(
        "wrapper-kill",
        "send SIGKILL to `rank.py`",
        ANY,
        Signal(_RANK_PY, "SIGKILL"),
        _in(RUN[1:], replace(_CRASH, cause=r"\b{host}\b")),
    ),
    Fault(
        "launcher-kill",
        "send SIGKILL to `mpirun` or `torchrun` on main",
        MAIN,
        Signal(_LAUNCHER, "SIGKILL"),
        _in(RUN, replace(_CRASH, cause=r"\b{host}\b")),
    ),
    Fault(
        "supervisor-kill",
        "send SIGKILL to the supervisor",
        MAIN,
        Signal(_SUPERVISOR, "SIGKILL"),
        {**_in(RUN, replace(_MAIN_GONE, cause="supervisor|{host}")), "stop": _MAY_FAIL},
    ),
    Fault(
        "supervisor-stop",
        "suspend the supervisor for 4 s with SIGSTOP",
        MAIN,
        Signal(_SUPERVISOR, "SIGSTOP", "SIGCONT"),
        {**_in(RUN, _SURVIVES), "stop": _WORKS},
        hold=4,
    ),
    Fault(
        "lease-kill",
        "send SIGKILL to a lease process",
        ANY,
        Signal(_LEASE, "SIGKILL"),
        {**_in(RUN, _NAMED), "stop": _MAY_FAIL},
    ),
    Fault(
        "lease-stop",
        "suspend the lease process of a worker for 3 s with SIGSTOP",
        WORKER,
        Signal(_LEASE, "SIGSTOP", "SIGCONT"),
        _in(RUN, _SURVIVES),
        hold=3,
    ),
)

_CONTAINERS = (
    Fault(
        "main-kill",
        "kill the main container",
        MAIN,
        Shell("docker kill $NAME"),
        {**_in(RUN, _MAIN_GONE), **_in(END, _MAY_FAIL)},
        settle=True,
    ),
    Fault(
        "main-stop",
        "freeze the main container for 12 s",
        MAIN,
        Shell("docker pause $NAME", "docker unpause $NAME"),
        # Its own ranks cannot end while they are frozen.
        {
            **_in(RUN, replace(_MAIN_GONE, gone=15, own=30)),
            # Before the leases start, main is not missed.
            "launch": replace(_MAY_FAIL, states=(*_MAIN_GONE.states, "succeeded")),
            "stop": _MAY_FAIL,
        },
        hold=12,
        settle=True,
    ),
    Fault(
        "main-remove",
        "remove the main container",
        MAIN,
        Shell("docker rm -f $NAME"),
        {**_in(RUN, _MAIN_GONE), **_in(END, _MAY_FAIL)},
        settle=True,
    ),
    Fault(
        "worker-kill",
        "kill a worker container",
        WORKER,
        Shell("docker kill $NAME"),
        {**_in(RUN, _NAMED), "launch": _UNHEARD, **_in(END, _MAY_FAIL)},
        settle=True,
    ),
    Fault(
        "worker-stop",
        "freeze a worker container",
        WORKER,
        Shell("docker pause $NAME", "docker unpause $NAME"),
        {
            **_in(RUN, replace(_LOST, own=None)),
            "launch": replace(_UNHEARD, own=None),
            **_in(END, _MAY_FAIL),
        },
        settle=True,
    ),
    Fault(
        "worker-remove",
        "remove a worker container",
        WORKER,
        Shell("docker rm -f $NAME"),
        {**_in(RUN, _NAMED), "launch": _UNHEARD, **_in(END, _MAY_FAIL)},
        settle=True,
    ),
)

_MACHINES = (
    Fault(
        "host-off",
        "cut the power of a worker host, then boot it",
        WORKER,
        Machine("kill", "start"),
        {**_in(UP[:1], _MUST_FAIL), **_in(RUN[1:], replace(_LOST, own=None)), **_in(END, _MAY_FAIL)},
        strikes=True,
        settle=True,
    ),
    Fault(
        "host-stop",
        "freeze a worker host for at most 20 s",
        WORKER,
        Machine("pause", "unpause"),
        {**_in(("connect", "start"), _MAY_FAIL), **_in(RUN[1:], replace(_LOST, own=None))},
        hold=20,
        strikes=True,
        settle=True,
    ),
    Fault(
        "dockerd-kill",
        "kill a container engine and restart it after 3 s, which stops its containers",
        ANY,
        Shell(_ENGINE_LINE + "kill -9 $(cat /run/docker.pid)", _ENGINE_START),
        {
            **_in(UP, _MAY_FAIL),
            # While it is away nothing ends; the limit holds from when it has ended the containers.
            # On main it ends the supervisor too, so that the job has no exit record.
            "step": replace(_NAMED, states=("failed", "lost"), notice=20, end=25, gone=25, own=25),
            **_in(END, _MAY_FAIL),
        },
        hold=3,
        strikes=True,
        settle=True,
    ),
    Fault(
        "dockerd-stop",
        "suspend a container engine for 4 s with SIGSTOP",
        ANY,
        Shell("kill -STOP $(cat /run/docker.pid)", "kill -CONT $(cat /run/docker.pid)"),
        {**_in(UP, _MAY_FAIL), **_in(RUN[1:], _SURVIVES), **_in(END, _WORKS)},
        hold=4,
    ),
    Fault(
        "sshd-kill",
        "kill the sshd of a host, but keep open connections",
        ANY,
        Shell(_SSHD.format("KILL"), _SSHD_START),
        {
            "connect": _MUST_FAIL,
            **_in(("preflight", "start"), _WORKS),
            "step": _SURVIVES,
            **_in(END, _MAY_FAIL),
        },
        hold=3,
    ),
    Fault(
        "sshd-stop",
        "suspend the sshd of a host with SIGSTOP",
        ANY,
        Shell(_SSHD.format("STOP"), _SSHD.format("CONT")),
        {"connect": _MUST_FAIL, **_in(("preflight", "start"), _WORKS), "step": _SURVIVES},
    ),
)

_NETWORK = (
    Fault(
        "link-cut",
        "drop all packets between a worker host and the other hosts",
        WORKER,
        _between(_DROP),
        {"start": _MAY_FAIL, **_in(RUN, _LOST), "launch": _UNHEARD, **_in(END, _MAY_FAIL)},
        settle=True,
    ),
    Fault(
        "link-cut-in",
        "drop all packets from the other hosts to a worker host",
        WORKER,
        _between(_DROP, "INPUT"),
        {**_in(RUN, _LOST), "launch": _UNHEARD},
        settle=True,
    ),
    Fault(
        "link-cut-out",
        "drop all packets from a worker host to the other hosts",
        WORKER,
        _between(_DROP, "OUTPUT"),
        {**_in(RUN, _LOST), "launch": _UNHEARD},
        settle=True,
    ),
    Fault(
        "link-cut-main",
        "drop all packets between main and the workers",
        MAIN,
        _between(_DROP),
        # Every worker is lost at once, and the first one is named.
        _in(RUN[1:], replace(_LOST, cause=r"\bbox[23] is lost\b", gone=15)),
        settle=True,
    ),
    Fault(
        "link-reset",
        "reset all TCP connections between a worker host and the other hosts",
        WORKER,
        _between(
            # Or the resets themselves would not get out.
            "iptables -A FAULT $way $peer -p tcp --tcp-flags RST RST -j RETURN || exit 1\n"
            "iptables -A FAULT $way $peer -p tcp -j REJECT --reject-with tcp-reset || exit 1"
        ),
        {"start": _MAY_FAIL, **_in(RUN, _NAMED), "launch": _UNHEARD},
        settle=True,
    ),
    Fault(
        "link-loss-1",
        "drop 1 % of the packets between a host and the other hosts for 4 s",
        ANY,
        _between(
            "iptables -A FAULT $way $peer -m statistic --mode random --probability 0.01 -j DROP || exit 1"
        ),
        {"start": _WORKS, **_in(RUN, _SURVIVES)},
        hold=4,
    ),
    Fault(
        "link-loss-10",
        "drop 10 % of the packets between a host and the other hosts for 4 s",
        ANY,
        _between(
            "iptables -A FAULT $way $peer -m statistic --mode random --probability 0.1 -j DROP || exit 1"
        ),
        {"start": _WORKS, **_in(RUN, _SURVIVES)},
        hold=4,
    ),
    Fault(
        "link-slow",
        "limit the sending rate of a host to 1 Mb/s for 4 s",
        ANY,
        Shell(
            "for card in $(ls /sys/class/net | grep -v -e '^lo$' -e docker -e veth -e br-); do"
            " tc qdisc replace dev $card root tbf rate 1mbit burst 32kb latency 400ms || exit 1; done",
            "for card in $(ls /sys/class/net | grep -v -e '^lo$' -e docker -e veth -e br-); do"
            " tc qdisc del dev $card root; done",
        ),
        {**_in(UP, _WORKS), **_in(RUN, _SURVIVES), **_in(END, _WORKS)},
        hold=4,
    ),
    Fault(
        "ssh-drop",
        "drop packets from your machine to the SSH port of a host",
        ANY,
        Shell(f"iptables -I {_SSH} DROP", f"iptables -D {_SSH} DROP"),
        {"connect": _MUST_FAIL, **_in(("preflight", "start", "send"), _MAY_FAIL), "down": _MAY_FAIL},
        hold=15,
        leaves=_SESSION,
    ),
    Fault(
        "ssh-reset",
        "reset connections from your machine to the SSH port of a host",
        ANY,
        Shell(
            f"iptables -I {_SSH} REJECT --reject-with tcp-reset",
            f"iptables -D {_SSH} REJECT --reject-with tcp-reset",
        ),
        {"connect": _MUST_FAIL, **_in(("preflight", "start", "send"), _MAY_FAIL), "down": _MAY_FAIL},
        hold=15,
        leaves=_SESSION,
    ),
    Fault(
        "ssh-reset-run",
        "reset the SSH connections of `run`, whose job must continue",
        MAIN,
        Shell(
            f"iptables -I {_SSH} REJECT --reject-with tcp-reset",
            f"iptables -D {_SSH} REJECT --reject-with tcp-reset",
        ),
        {"step": Answer(r"[1-9]\d*", ("succeeded",), r"\b{host}\b", goes_on=True)},
        hold=4,
        leaves=_SESSION,
    ),
)

_STATE = "/home/trainer/.local/state"
_DISKS = (
    Fault(
        "disk-full",
        "fill the checkpoint disk of main",
        MAIN,
        Shell(f"head -c {2 * DISK_BYTES} /dev/zero >{DISK}/full 2>/dev/null; true", f"rm -f {DISK}/full"),
        _in(RUN[1:], replace(_CRASH, notice=5, end=5, gone=5)),
    ),
    Fault(
        "disk-read-only",
        "make the checkpoint disk of main read-only",
        MAIN,
        Shell(
            # A mount with a file open for writing stays as it is: once more until it takes.
            f"for i in $(seq 99); do mount -o remount,ro {DISK} 2>/dev/null && exit; sleep 0.05; done; false",
            f"mount -o remount,rw {DISK}",
        ),
        {"step": replace(_CRASH, notice=8, end=8, gone=8)},
    ),
    Fault(
        "disk-state-full",
        "fill the disk of the state directory on a host",
        ANY,
        Shell(
            f"install -d -o trainer -g trainer {_STATE}; mount -t tmpfs -o size=64k,mode=777 none {_STATE}",
            f"umount {_STATE}",
        ),
        {"connect": _MUST_FAIL},
    ),
    Fault(
        "disk-state-read-only",
        "make the disk of the state directory on a host read-only",
        ANY,
        Shell(
            f"install -d -o trainer -g trainer {_STATE}; mount -t tmpfs -o ro,mode=777 none {_STATE}",
            f"umount {_STATE}",
        ),
        {"connect": _MUST_FAIL},
    ),
)

_CLOCK = "/usr/local/lib/faults-clock.so"
_OTHER = (
    Fault(
        "keys-gone",
        "revoke the login key of the cluster on a worker",
        WORKER,
        Shell(
            "f=$(ls /home/trainer/.local/state/toolkit/tried/*/conf/authorized_keys | head -n 1);"
            ' cp -p "$f" /run/faults-keys && echo "$f" >/run/faults-where && : >"$f"',
            'cat /run/faults-keys >"$(cat /run/faults-where)"; rm -f /run/faults-keys /run/faults-where',
        ),
        {"launch-before": _UNHEARD, "step": _SURVIVES},
    ),
    Fault(
        "clock",
        "set the clock of the ranks on a host 15 minutes ahead with libfaketime",
        ANY,
        Shell(
            f"docker cp /root/libfaketime.so.1 $NAME:{_CLOCK}",
            f"docker exec -u 0 $NAME rm -f {_CLOCK}",
        ),
        {"launch-before": _SURVIVES},
        needs=FAKETIME,
        settle=True,
        # On the other hosts there is no such file, and the loader goes on without. A wrong clock is wrong by
        # date alone: what counts seconds goes on.
        env=(f"LD_PRELOAD={_CLOCK}", "FAKETIME=+15m", "FAKETIME_DONT_FAKE_MONOTONIC=1"),
    ),
)

FAULTS: tuple[Fault, ...] = (
    *_COMMAND,
    *_PROCESSES,
    *_CONTAINERS,
    *_MACHINES,
    *_NETWORK,
    *_DISKS,
    *_OTHER,
)
