"""The shell of the questions, run by the shells that hosts have, and of what `gc` does."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit import cluster_world as world
from tests.unit.checks.recorded import NEW_COLUMNS, OLD_COLUMNS, card
from tests.unit.checks.scenes import scene
from tests.unit.container_world import OTHER, PATIENCE_S, only_root, sleeping, until_seen
from tests.unit.hosts_here import execute, hosts
from toolkit.checks.disk import CHECKS as DISK_CHECKS
from toolkit.checks.disk import QUOTA
from toolkit.checks.engine import LINGER
from toolkit.checks.gpu import GPUS, answers
from toolkit.checks.leftovers import CHECKS, MARKS, Stray, marked, state_folders
from toolkit.checks.machine import MACHINE, files, memory, processors
from toolkit.checks.model import Probe, Scene, Seen
from toolkit.checks.mounts import SEES
from toolkit.checks.places import PLACES, places
from toolkit.checks.ports import KERNEL, kernel_settings
from toolkit.checks.registry import host_probes
from toolkit.cleanup.plan import Leftovers, plan_gc
from toolkit.cluster.probe import probe_command, read_probe
from toolkit.protocol.frames import read_frames

NONCE = "0123456789abcdef"

# dash is what sh is on Debian; bash is what it is on others, busybox on the smallest.
SHELLS = [shell for shell in ("dash", "bash", "busybox") if shutil.which(shell)]


def ask(
    probe: Probe, home: Path, *sources: str, path: str = "", engine: str = "{}", state_dir: str = ""
) -> Seen:
    """The host's answer to this one question, as the whole script gets it."""
    folder = home / "bin"
    folder.mkdir(exist_ok=True)
    (folder / "docker").write_text(f"#!/bin/sh\n[ \"$1\" != info ] || echo '{engine}'\n")
    (folder / "docker").chmod(0o755)
    command = probe_command("i:1", "demo", "gpu1", NONCE, [(probe.name, probe.text)], sources, state_dir)
    done = subprocess.run(
        [str(token) for token in command.argv],
        env={"PATH": f"{path or folder}:/usr/bin:/bin", "HOME": str(home)},
        capture_output=True,
        check=True,
        timeout=30,
    )
    assert done.stderr == b""
    return Seen("gpu1", read_probe(done.stdout, NONCE))


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("probe", host_probes(), ids=lambda p: p.name)
def test_every_shell_parses_the_probe(probe: Probe, shell: str) -> None:
    words = [shell, "sh"] if shell == "busybox" else [shell]
    done = subprocess.run([*words, "-n"], input=probe.text, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_lingering_is_known_only_if_logind_knows_the_user(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    for text, answer in (("echo Linger=no", "Linger=no"), ("echo 'not logged in' >&2; exit 1", "")):
        (tmp_path / "bin" / "loginctl").write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / "bin" / "loginctl").chmod(0o755)
        assert ask(LINGER, tmp_path).answer(LINGER) == answer
    (tmp_path / "bin" / "loginctl").write_text("#!/bin/sh\necho Linger=no\n")
    system = '{"ID": "x", "DockerRootDir":"/var/lib/docker", "Name": "y"}'
    assert ask(LINGER, tmp_path, engine=system).answer(LINGER) == "", "not rootless"


def test_an_exceeded_quota_is_found_in_the_output_of_quota_tools(tmp_path: Path) -> None:
    # An asterisk marks an exceeded limit in the table, which quota-tools does not print with -q.
    # Without -w, the row of a long device name continues on the next line.
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "quota").write_text("""#!/bin/sh
echo "Disk quotas for user alice (uid 1000): "
case $* in *q*) echo "	Block limit reached on nas.example.com:/home"; exit 1 ;; esac
case $* in *w*) wrap= ;; *) wrap='
' ;; esac
echo "     Filesystem  blocks   quota   limit   grace   files   quota   limit   grace"
echo "nas.example.com:/home$wrap    1048*   1024    2048    none       4       0       0        "
exit 1
""")
    (tmp_path / "bin" / "quota").chmod(0o755)
    (check,) = (check for check in DISK_CHECKS if check.id == "disk-home")
    seen = replace(scene().seen["gpu2"], answers=ask(QUOTA, tmp_path).answers)
    (found,) = check.judged(replace(scene(), seen={"gpu2": seen}))
    assert found.verdict == "error"
    assert found.what.endswith("quota: nas.example.com:/home 1048* 1024 2048 none 4 0 0")


def test_folders_are_reported_correctly(tmp_path: Path) -> None:
    home = tmp_path / "home folder"
    data, store = home / "data", home / "store"
    for folder in (home, data, store):
        folder.mkdir()
    (home / "file|with a bar").write_text("x")
    (home / "way").symlink_to(data)
    (home / "nowhere").symlink_to(tmp_path / "gone")
    (data / "out").symlink_to("/mnt/big/out")
    (data / "in").symlink_to("a/b")
    sources = [str(home / name) for name in ("way", "file|with a bar", "nowhere", "absent")]
    engine = f'{{"ID": "x", "DockerRootDir":"{store}/not-yet", "Name": "y"}}'
    found = places(ask(PLACES, home, *sources, engine=engine))
    by_path = {one.path: one for one in found}
    root, state = (next(one for one in found if one.role == role) for role in ("root", "state"))
    assert (root.path, root.kind) == (str(store), "directory"), "the nearest folder that is there"
    assert (state.path, state.may) == (str(home), "rwx")
    assert root.size > root.free > 0 and root.type and root.options
    assert root.answered and by_path[sources[-1]].answered
    way, file, nowhere, absent = (by_path[source] for source in sources)
    assert (way.kind, way.real, set(way.links)) == (
        "directory",
        str(data),
        {("out", "/mnt/big/out"), ("in", "a/b")},
    )
    assert way.inode.endswith(f":{data.stat().st_ino}")
    assert (file.kind, file.real, file.may.strip("x")) == ("file", sources[1], "rw")
    assert (nowhere.kind, absent.kind) == ("broken link", "")


@pytest.mark.parametrize("shell", SHELLS)
def test_a_mount_point_with_a_blank_in_its_path_is_found(tmp_path: Path, shell: str) -> None:
    """The kernel writes such characters as octal digits."""
    names = {"My Data": r"My\040Data", "a\tb": r"a\011b", r"c\d e": r"c\134d\040e", "MyData": "MyData"}
    lines = [f"nas:/{n} {tmp_path}/{written} nfs4 ro 0 0" for n, written in enumerate(names.values())]
    (tmp_path / "mounts").write_text("/dev/vda1 / ext4 rw 0 0\n" + "".join(f"{line}\n" for line in lines))
    sources = [tmp_path / name / "set" for name in names]
    for source in sources:
        source.mkdir(parents=True)
    words = "busybox sh" if shell == "busybox" else shell
    text = PLACES.text.replace("/proc/self/mounts", f"{tmp_path}/mounts").replace(" sh -c ", f" {words} -c ")
    found = places(ask(replace(PLACES, text=text), tmp_path, *map(str, sources)))
    assert [(one.source, one.type, one.options) for one in found if one.role == "mount"] == [
        (f"nas:/{n}", "nfs4", ("ro",)) for n in range(len(names))
    ]


def test_a_state_folder_of_which_no_part_exists(tmp_path: Path) -> None:
    """As with `state_dir: /scratch` on a host without /scratch: the nearest folder is the root."""
    seen = ask(PLACES, tmp_path, state_dir=f"/{tmp_path.name}-absent")
    found = {one.role: one for one in places(seen)}
    assert (found["state"].path, found["state"].answered) == ("/", True) and found["home"].kind
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "docker").write_text("#!/bin/sh\necho 'No such image'\n")
    (tmp_path / "other" / "docker").chmod(0o755)
    seen = ask(SEES, tmp_path, path=str(tmp_path / "other"), state_dir=f"/{tmp_path.name}-absent")
    assert seen.answer(SEES) == "open|state|/"


def test_a_read_only_folder_in_the_state_folder_is_reported(tmp_path: Path) -> None:
    jobs = tmp_path / ".local/state/toolkit/demo/gpu1/jobs"
    jobs.mkdir(parents=True)
    state = next(one for one in places(ask(PLACES, tmp_path)) if one.role == "state")
    assert (state.path, state.locked) == (str(jobs.parent), ())
    if os.getuid():  # root may write wherever the file system can be written to
        jobs.chmod(0o500)
        state = next(one for one in places(ask(PLACES, tmp_path)) if one.role == "state")
        assert state.locked == (str(jobs),)


def test_a_hung_file_system_is_reported(tmp_path: Path) -> None:
    seen = ask(PLACES, tmp_path, str(tmp_path))
    whole = seen.answers["places"]
    cut = replace(seen, answers={"places": whole[: whole.index("at|mount")] + f"at|mount|{tmp_path}\n"})
    *others, last = places(cut)  # the machine can have any of the engines' folders
    assert [one.answered for one in others] == [True] * len(others) and not last.answered


def test_the_probe_reports_the_machine(tmp_path: Path) -> None:
    seen = ask(MACHINE, tmp_path)
    assert processors(seen) == len(os.sched_getaffinity(0)) or processors(seen) > 0
    assert memory(seen)["MemTotal"] > 2**28
    assert "missing" not in files(seen)
    bare = tmp_path / "bare"
    bare.mkdir()
    text = MACHINE.text.replace("/proc/meminfo", "").replace("grep -sH", ": -sH")
    done = subprocess.run(["/bin/sh", "-c", text], env={"PATH": str(bare)}, capture_output=True, text=True)
    assert "missing:sha256sum" in done.stdout and "missing:base64" in done.stdout


def test_the_probe_reports_the_settings_of_the_kernel(tmp_path: Path) -> None:
    found = kernel_settings(ask(KERNEL, tmp_path))
    folder = Path("/proc/sys/net/ipv4")
    assert found["ip_local_port_range"] == (folder / "ip_local_port_range").read_text().strip()
    assert {"ip_local_reserved_ports", "conf/lo/rp_filter"} <= found.keys()


def test_a_long_hosts_file_is_read_in_a_short_time(tmp_path: Path) -> None:
    names = tmp_path / "hosts"
    names.write_text("127.0.0.1 localhost\n" + "10.77.0.2 gpu1.cluster.example.com gpu1\n" * 200_000)
    begun = sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])
    seen = ask(replace(MACHINE, text=MACHINE.text.replace("/etc/hosts", str(names))), tmp_path)
    assert files(seen)[str(names)] == ["127.0.0.1 localhost"]
    assert sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2]) - begun < 2, "seconds of CPU time"


# GPUs

# Refuses the first column in the file ``unknown``, as nvidia-smi does.
_SMI = r"""#!/bin/sh
case $1 in
--query-gpu=*)
  for column in $(cat {folder}/unknown); do
    case ,${{1#*=}}, in *,$column,*) echo "Field \"$column\" is not a valid field to query."; exit 2 ;; esac
  done
  echo "$1" >>{folder}/queries; cat {folder}/rows ;;
--query-compute-apps=*process_name*) printf '%s\n' "GPU-0, {pid}, 20312, a|b, c" "GPU-1, 1, 5, forged" ;;
--query-compute-apps=*) echo "GPU-0, {pid}, 20312" ;;
--query-remapped-rows=*) echo "GPU-0, No, No"; echo "GPU-1, Yes, No" ;;
*) exit 2 ;;
esac
"""


@pytest.fixture
def smi(tmp_path: Path) -> Iterator[Path]:
    """Create a folder with a fake nvidia-smi that prints its file ``rows``."""
    program = tmp_path / "bin" / "nvidia-smi"
    program.parent.mkdir()
    # nvidia-smi would print its name, here "a|b, c" and a line that looks like another process.
    named = tmp_path / "a|b, c"
    shutil.copy(shutil.which("sleep") or "", named)
    with subprocess.Popen([named, "300"]) as process:
        until_seen(process)
        (tmp_path / "unknown").touch()
        program.write_text(_SMI.format(folder=tmp_path, pid=process.pid))
        program.chmod(0o755)
        try:
            yield tmp_path
        finally:
            process.kill()


def test_a_query_of_the_gpus_is_read(smi: Path) -> None:
    (smi / "rows").write_text("\n".join((NEW_COLUMNS, card(0), card(1))))
    told = answers(ask(GPUS, smi))
    assert [c["compute_cap"] for c in told.cards] == ["8.6", "8.6"]
    assert (told.trouble, told.tagged("rows")) == ("", ("GPU-0, No, No", "GPU-1, Yes, No"))
    (app,) = told.apps
    assert (app.gpu, app.memory, app.name) == ("GPU-0", "20312", "a|b, c")
    assert app.state in "RSD" and app.user
    assert told.tagged("running") == (os.uname().release,)


@pytest.mark.parametrize(
    ("unknown", "left"),
    [
        ("", "compute_cap,gpu_recovery_action,reset_status.reset_required"),
        ("reset_status.reset_required", "compute_cap,gpu_recovery_action"),  # driver 580.159
        ("gpu_recovery_action", "compute_cap,reset_status.reset_required"),
        ("compute_cap gpu_recovery_action reset_status.reset_required", ""),
    ],
)
def test_a_column_that_a_driver_does_not_know_costs_only_this_column(
    smi: Path, unknown: str, left: str
) -> None:
    (smi / "unknown").write_text(unknown)
    (smi / "rows").write_text("\n".join((OLD_COLUMNS, card(0, OLD_COLUMNS))))
    told = answers(ask(GPUS, smi))
    assert [c["clocks_throttle_reasons.active"] for c in told.cards] == ["0x0000000000000001"]
    assert told.trouble == ""
    query = (smi / "queries").read_text().splitlines()[-1]
    assert query.partition("clocks_throttle_reasons.active")[2] == (f",{left}" if left else "")


def test_the_error_message_of_a_driver_is_kept(smi: Path) -> None:
    (smi / "rows").write_text("Failed to initialize NVML: Driver/library version mismatch\n")
    told = answers(ask(GPUS, smi))
    assert told.cards == () and "version mismatch" in told.trouble


def test_errors_of_a_program_do_not_hide_an_error_of_the_hardware(smi: Path) -> None:
    (smi / "rows").write_text(NEW_COLUMNS)
    lost = "[  1.0] NVRM: Xid (PCI:0000:65:00): 79, pid=1, GPU has fallen off the bus."
    crash = "[  2.0] NVRM: Xid (PCI:0000:17:00): 13, pid=2, Graphics SM Warp Exception on (GPC 0, TPC {})"
    (smi / "log").write_text("\n".join((lost, lost, *(crash.format(number) for number in range(500)))))
    (smi / "bin" / "dmesg").write_text(f"#!/bin/sh\ncat {smi}/log\n")
    (smi / "bin" / "dmesg").chmod(0o755)
    lines = answers(ask(GPUS, smi)).tagged("log")
    assert [line.split(None, 1) for line in lines if line] == [
        ["500", "NVRM: Xid (PCI:0000:17:00): 13"],
        ["2", "NVRM: Xid (PCI:0000:65:00): 79"],
    ]


@pytest.mark.parametrize("begin", ["smi=hangs", "smi=; ask_gpus() { echo no answer; return 1; }"])
def test_the_kernel_log_is_read_although_nvidia_smi_hangs(smi: Path, begin: str) -> None:
    (smi / "bin" / "dmesg").write_text("#!/bin/sh\necho 'NVRM: Xid (PCI:0000:65:00): 119, pid=1'\n")
    (smi / "bin" / "dmesg").chmod(0o755)
    path = f"{smi}/bin:/usr/bin:/bin"
    done = subprocess.run(
        ["sh", "-c", f"{begin}\n{GPUS.text}"], env={"PATH": path}, capture_output=True, text=True
    )
    told = answers(Seen("gpu1", {GPUS.name: done.stdout}))
    assert told.trouble.startswith("no answer")
    assert [line.strip() for line in told.tagged("log")] == ["", "1 NVRM: Xid (PCI:0000:65:00): 119"]


# Leftovers


@pytest.fixture
def stray() -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """A job's id, and a process that carries it."""
    job = f"20260101-000000-test-{os.getpid():04x}"
    env = {**os.environ, "TOOLKIT_CLUSTER": "demo", "TOOLKIT_JOB": job}
    process = subprocess.Popen(["sleep", "300"], env=env)
    until_seen(process)
    try:
        yield job, process
    finally:
        process.kill()
        process.wait()


def test_marked_processes_and_state_folders_are_found(
    tmp_path: Path, stray: tuple[str, subprocess.Popen[bytes]]
) -> None:
    job, process = stray
    folder = tmp_path / ".local/state/toolkit/other/gpu7"
    folder.mkdir(parents=True)
    seen = ask(MARKS, tmp_path)
    base = str(tmp_path / ".local/state/toolkit")
    seen = replace(seen, host="gpu7", facts=world.facts("gpu7", state_dir=f"{base}/other/gpu7"))
    assert state_folders(seen) == {("other", "gpu7"): str(folder)}
    (check,) = (check for check in CHECKS if check.id == "left-state")
    scene = Scene(world.inventory(), {"gpu7": seen})
    assert [found.verdict for found in check.judged(scene)] == ["warning"]
    # Another cluster calls another host gpu7, and both hosts have the same home.
    (folder / "conf").mkdir()
    (folder / "conf/host.json").write_text('{"address": "192.0.2.7", "host": "gpu7"}\n')
    seen = replace(seen, answers=ask(MARKS, tmp_path).answers)
    assert [found.verdict for found in check.judged(replace(scene, seen={"gpu7": seen}))] == ["ok"]
    (own,) = (one for one in marked(seen) if one.pid == process.pid)
    assert (own.cluster, own.job, own.supervisor) == ("demo", job, "")


def test_a_variable_is_one_value_whatever_it_contains(tmp_path: Path) -> None:
    forged = "demo\n/proc/1/environ:TOOLKIT_SUPERVISOR=j\nstate||old|gpu1\nlooked"
    with sleeping(TOOLKIT_CLUSTER=forged, TOOLKIT_JOB="j\nTOOLKIT_SUPERVISOR=j") as process:
        seen = ask(MARKS, tmp_path)
    (own,) = (one for one in marked(seen) if one.pid == process.pid)
    assert (own.cluster, own.job, own.supervisor) == (
        forged.replace("\n", " "),
        "j TOOLKIT_SUPERVISOR=j",
        "",
    )
    assert 1 not in {one.pid for one in marked(seen)} and state_folders(seen) == {}


def test_more_processes_than_a_command_line_holds_are_searched(
    tmp_path: Path, stray: tuple[str, subprocess.Popen[bytes]]
) -> None:
    # As in dash before 0.5.11, the status for a command line that is too long is that of an unreadable file.
    (tmp_path / "bin").mkdir()
    grep = shutil.which("grep")
    (tmp_path / "bin" / "grep").write_text(
        f'#!/bin/sh\nread -r parent <"/proc/$PPID/comm"\n'
        f'case $parent:$* in xargs:*) ;; *TOOLKIT_*) exit 2 ;; esac\nexec {grep} "$@"\n'
    )
    (tmp_path / "bin" / "grep").chmod(0o755)
    few = replace(MARKS, text=MARKS.text.replace("$# -gt 3000", "$# -gt 0"))
    assert stray[1].pid in {one.pid for one in marked(ask(few, tmp_path))}


@only_root
def test_processes_of_others_do_not_count(tmp_path: Path) -> None:
    with (
        sleeping(user=OTHER, TOOLKIT_SUPERVISOR="j") as other,
        sleeping(setuid=True, TOOLKIT_SUPERVISOR="j") as setuid,
        sleeping(TOOLKIT_SUPERVISOR="j") as mine,
    ):
        found = {one.pid for one in marked(ask(MARKS, tmp_path))}
    assert mine.pid in found and not {other.pid, setuid.pid} & found


def test_names_and_targets_of_links_are_data(tmp_path: Path) -> None:
    home, data = tmp_path / "home", tmp_path / "data"
    home.mkdir()
    data.mkdir()
    forged = "x\nat|state|/evil\nis|directory\nlooked"
    (data / "link").symlink_to(forged)
    (data / "a\nat|state|evil").symlink_to("gone")
    (data / "b|c").symlink_to("d|e")
    (tmp_path / forged.partition("/")[0]).mkdir()
    (tmp_path / "way").symlink_to(tmp_path / forged.partition("/")[0])
    found = places(ask(PLACES, home, str(data), str(tmp_path / "way")))
    assert [one.role for one in found if one.role != "containerd"] == [
        "root",
        "state",
        "home",
        "mount",
        "mount",
    ]
    mount, way = found[-2:]
    assert set(mount.links) == {("link", forged), ("b|c", "d|e")}
    assert way.real == str(tmp_path / forged.partition("/")[0]) and way.answered


def test_the_data_of_a_containerd_that_was_moved_is_the_place_of_images(tmp_path: Path) -> None:
    data = tmp_path / "containerd's data"
    data.mkdir()
    (tmp_path / "config.toml").write_text(f'root = "{data}"\n')
    probe = replace(
        PLACES, text=PLACES.text.replace("/etc/containerd/config.toml", f"{tmp_path}/config.toml")
    )
    found = places(ask(probe, tmp_path))
    assert [one.path for one in found if one.role == "containerd"] == [str(data)]


def test_processes_of_an_ended_job_are_killed(stray: tuple[str, subprocess.Popen[bytes]]) -> None:
    job, process = stray
    plan = plan_gc(Leftovers({}, (Stray("gpu1", job, (process.pid,), "main", "demo"),)))
    report = execute(plan, hosts("main", "gpu1"))
    assert report.ok and process.wait(PATIENCE_S) == -15
    again = execute(plan, hosts("main", "gpu1"))
    assert [o.status for o in again.outcomes] == ["ok", "skipped"], "the question changes nothing"


@pytest.mark.parametrize("reason", ["runs", "the main container closed the connection"])
def test_processes_are_kept_unless_main_reports_that_the_job_has_ended(
    stray: tuple[str, subprocess.Popen[bytes]], reason: str
) -> None:
    job, process = stray
    plan = plan_gc(Leftovers({}, (Stray("gpu1", job, (process.pid,), "main", "demo"),)))
    env = {**os.environ, "TOOLKIT_SUPERVISOR": job if reason == "runs" else ""}
    supervisor = subprocess.Popen(["sleep", "300"], env=env)
    until_seen(supervisor)
    try:
        report = execute(plan, hosts("gpu1", *(("main",) if reason == "runs" else ())))
    finally:
        supervisor.kill()
        supervisor.wait()
    assert report.outcomes[-1].status == "failed"
    assert "does not report the end of job" in report.outcomes[-1].detail
    assert process.poll() is None


def container(runs: bool, *sources: str) -> str:
    """Return the lines of `docker inspect` about one container that the probe reads."""
    mounts = ",".join(
        f'\n            {{\n                "Source": "{one}",\n                "RW": true}}'
        for one in sources
    )
    return f"""    {{
        "State": {{
            "Running": {"true" if runs else "false"},
        }},
        "Mounts": [{mounts}]
    }}"""


def test_an_engine_that_hangs_is_tried_once(tmp_path: Path) -> None:
    folder = tmp_path / "other"
    folder.mkdir()
    (folder / "docker").write_text(
        f"#!/bin/sh\n[ $1 = create ] || exit 0\necho >>{tmp_path}/tried\nexec sleep 9\n"
    )
    (folder / "docker").chmod(0o755)
    quick = replace(SEES, text=SEES.text.replace("timeout -s KILL 10", "timeout -s KILL 0.2"))
    assert ask(quick, tmp_path, str(folder), str(tmp_path), path=str(folder)).answer(SEES) == ""
    assert (tmp_path / "tried").read_text() == "\n"


@pytest.mark.parametrize(
    ("runs", "tried"),
    [
        ((True, True), []),
        ((True, False), ["mount"]),
        ((False, True), ["state"]),
        ((False, False), ["state", "mount"]),
    ],
)
def test_the_engine_tries_only_folders_that_no_running_container_mounts(
    runs: tuple[bool, bool], tried: list[str], tmp_path: Path
) -> None:
    """Two containers, one with our folders, one with a mount; the engine keeps a list of what it tries."""
    state, data = tmp_path / ".local/state/toolkit/demo/gpu1", tmp_path / "data"
    (state / "conf").mkdir(parents=True)
    data.mkdir()
    said = ",\n".join((container(runs[0], f"{state}/conf"), container(runs[1], str(data))))
    (tmp_path / "said").write_text(f"[\n{said}\n]\n")
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "docker").write_text(
        f"""#!/bin/sh
case $1 in
  info) echo "{{}}" ;;
  ps) echo 0123 ;;
  inspect) cat {tmp_path}/said ;;
  create) echo "$5" >>{tmp_path}/tried; echo "No such image" ;;
esac
"""
    )
    (folder / "docker").chmod(0o755)
    command = probe_command("i:1", "demo", "gpu1", NONCE, [(SEES.name, SEES.text)], [str(data)])
    env = {"PATH": f"{folder}:/usr/bin:/bin", "HOME": str(tmp_path)}
    argv = [str(token) for token in command.argv]
    done = subprocess.run(argv, env=env, capture_output=True, check=True)
    answer = read_frames(done.stdout, NONCE)[SEES.name]
    assert answer.splitlines() == [f"open|state|{state}", f"open|mount|{data}"]
    log = (tmp_path / "tried").read_text() if (tmp_path / "tried").exists() else ""
    assert ["state" if str(state) in line else "mount" for line in log.splitlines()] == tried
