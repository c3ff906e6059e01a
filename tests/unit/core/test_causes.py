"""Errors for failed commands on a host: the cause that the output names, the free disk space, the fix."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.each import for_each
from tests.unit.hosts_here import HostHere
from toolkit.core.causes import cause_of, named_paths, why_unwritable, words_of
from toolkit.core.command import Result, command
from toolkit.core.disk_space import Room, parse_room, size, tightest
from toolkit.plan.context import failure, rooms_of

DAEMON = "docker: Error response from daemon: "
CHDIR = 'OCI runtime exec failed: exec failed: chdir to cwd ("/state") set in config.json failed: '
HINT = "\nSee 'docker run --help'."

# What engines 20.10 and 26.1 print, and the runtimes below them.
CASES = [
    (
        "Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?",
        "the docker engine is not running",
        "on gpu1: sudo systemctl start docker",
    ),
    (
        "error during connect: Get http://%2Fvar%2Frun%2Fdocker.sock/v1.45/info: EOF",
        "the docker engine is not running",
        "systemctl",
    ),
    (
        "Got permission denied while trying to connect to the Docker daemon socket at unix:///var/run/docker.sock",
        "user alice cannot use docker",
        "on gpu1: sudo usermod -aG docker alice  # then log in again",
    ),
    ("sh: 1: docker: not found", "docker is not on the PATH", "docs.docker.com"),
    ("bash: line 1: docker: command not found", "docker is not on the PATH", "docs.docker.com"),
    (
        "timeout: failed to run command 'docker': No such file or directory",
        "docker is not on the PATH",
        "docs.docker.com",
    ),
    (
        DAEMON
        + 'invalid mount config for type "bind": bind source path does not exist: /data/my sets.'
        + HINT,
        "the source of a mount does not exist",
        "on gpu1: mkdir -p '/data/my sets'  # or correct the source under mounts: in hosts.yaml",
    ),
    (
        DAEMON + 'invalid mount config for type "bind": stat /home/alice/.local/state: permission denied.',
        "for example on NFS with root_squash",
        "state_dir: in hosts.yaml",
    ),
    (
        DAEMON + 'could not select device driver "" with capabilities: [[gpu]].',
        "docker on the host cannot give GPUs to containers",
        "nvidia-ctk runtime configure",
    ),
    (
        "nvidia-container-cli: initialization error: load library failed: libnvidia-ml.so.1: cannot open",
        "docker on the host cannot give GPUs to containers",
        "NVIDIA Container Toolkit",
    ),
    (
        "Unable to find image 'toolkit.local/verified:ab12' locally\n"
        + DAEMON
        + 'Get "https://toolkit.local/v2/": dial tcp: lookup toolkit.local: no such host.',
        "the image is no longer on the host",
        "run the same command again",
    ),
    (
        DAEMON
        + "failed to create task for container: OCI runtime create failed: runc create failed: unable to"
        ' start container process: exec: "ssh-keygen": executable file not found in $PATH: unknown.',
        "the image does not contain ssh-keygen",
        "toolkit image build",
    ),
    (
        'Error: lookup init binary: exec: "catatonit": executable file not found in $PATH',
        "catatonit, the init process of containers, is not installed on the host",
        "apt-get install catatonit",
    ),
    (
        DAEMON + "AppArmor enabled on system but the docker-default profile could not be loaded: running"
        " `apparmor_parser apparmor_parser --version` failed with output: \nerror: exec:"
        ' "apparmor_parser": executable file not found in $PATH.',
        "AppArmor is enabled on the host, but the docker engine cannot run apparmor_parser",
        "apt-get install apparmor",
    ),
    (
        DAEMON
        + "error setting rlimits for ready process: error setting rlimit type 8: operation not permitted",
        "the docker engine on the host cannot raise limits",
        "CAP_SYS_RESOURCE",
    ),
    (
        "OCI runtime exec failed: exec failed: unable to start container process: current working directory"
        " is outside of container mount namespace root -- possible container breakout detected: unknown",
        "the state directory of the cluster was deleted",
        "toolkit down && toolkit up",
    ),
    (
        CHDIR + "no such file or directory: unknown",
        "the state directory of the cluster was deleted",
        "toolkit down && toolkit up",
    ),
    *(
        (said, "the cluster was removed during the command", "toolkit up  # after the removal has finished")
        for said in (
            "mktemp: failed to create directory via template '/home/a/toolkit/demo/gpu1/.toolkit-new.XXXXXX':"
            " No such file or directory",
            "mv: target '/home/a/toolkit/demo/gpu1/conf/': No such file or directory",
            "Error response from daemon: No such container: toolkit-demo-worker",
            "Error: No such object: toolkit-demo-worker",
        )
    ),
]


@for_each(("said", "what", "fix"), CASES)
def test_words_that_name_a_cause(said: str, what: str, fix: str) -> None:
    cause = cause_of(said, "gpu1", "alice")
    assert cause is not None
    assert what in cause.what and fix in cause.fix
    assert "{" not in cause.what + cause.fix and "HOST" not in cause.fix


@pytest.mark.parametrize(
    "said",
    [
        "",
        "box2: Permission denied (publickey)",
        "sshd: no hostkeys available -- exiting.",
        "no such file",
        CHDIR + "permission denied: unknown",
    ],
)
def test_words_that_name_none(said: str) -> None:
    assert cause_of(said, "gpu1") is None


def test_a_user_whose_name_is_not_known_is_the_shells_own() -> None:
    cause = cause_of("permission denied while trying to connect to the Docker daemon", "gpu1")
    assert cause is not None
    assert (cause.what, "docker $USER" in cause.fix) == ("the SSH user cannot use docker", True)


def test_what_docker_puts_around_its_words_goes() -> None:
    assert words_of(f"{DAEMON}no luck.{HINT}") == "no luck."
    assert words_of("Error response from daemon: no luck\n\n") == "no luck"
    assert words_of("\n".join("abcdef")) == "c | d | e | f"
    assert words_of(HINT.strip()) == HINT.strip(), "better than nothing"
    assert words_of("") == ""


def test_a_failure_keeps_the_words_and_names_host_and_cure() -> None:
    said = Result(125, "", DAEMON + "bind source path does not exist: /data." + HINT)
    error = failure(said, HostHere("gpu1"), "ask the administrator")
    assert str(error) == (
        "gpu1: the source of a mount does not exist: "
        "bind source path does not exist: /data.\n"
        "  fix: on gpu1: mkdir -p /data  # or correct the source under mounts: in hosts.yaml"
    )
    plain = failure(Result(1, "", "odd"), HostHere("gpu1"), "ask the administrator")
    assert (plain.what, plain.fix) == ("odd", "ask the administrator")
    silent = failure(Result(9), HostHere("gpu1"))
    assert silent.what == "the command exited with status 9 and printed nothing"


# Full disks

TMPFS = "tmpfs 1024 1020 4 100% /mnt/my disk"
INODES = "tmpfs 100 100 0 100% /mnt/my disk"


@pytest.mark.parametrize(
    ("said", "paths"),
    [
        (
            "mkdir: cannot create directory '/home/a/.local': No space left on device",
            ("/home/a/.local",),
        ),
        (
            "write /var/lib/docker/tmp/docker-import-1/layer.tar: no space left on device",
            ("/var/lib/docker/tmp/docker-import-1/layer.tar",),
        ),
        ("base64: write error: No space left on device", ()),
        ("sh: 3: cannot create /a/b: Disk quota exceeded", ("/a/b",)),
        ("touch: cannot touch '/a/b': Read-only file system", ("/a/b",)),
    ],
)
def test_words_of_a_disk_that_takes_no_more(said: str, paths: tuple[str, ...]) -> None:
    assert why_unwritable(said) and named_paths(f"about /something else\n{said}") == paths


def test_what_df_says() -> None:
    rooms = parse_room(
        f"room|/x|{TMPFS}|{INODES}\nroom|/y|odd|odd\nroom|/z|/dev/a b 1 2 3 4% /|- - - - - /\n"
    )
    assert rooms[0] == Room("/x", "/mnt/my disk", 4096, 1024**2, 0)
    assert rooms[0].is_full
    assert parse_room("room|/b|btrfs 1000 0 1000 0% /b|btrfs 0 0 0 - /b\n")[0].inodes == -1
    assert parse_room("") == parse_room("df: no such thing") == ()


def test_the_named_file_system_before_the_one_with_least() -> None:
    full, fuller, roomy = (Room(p, p, n, 1000, -1) for p, n in (("/a", 9), ("/b", 1), ("/c", 500)))
    assert tightest([full, fuller, roomy], ["/a"]) == full
    assert tightest([full, fuller, roomy], ["/c"]) == fuller
    assert tightest([roomy], ["/c"]) is None
    assert Room("/d", "/d", 10**9, 2 * 10**9, 0).line() == "no free inode for another file on /d"
    assert full.line() == "9 bytes free of 1.0 kB on /a"


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 bytes"), (999, "999 bytes"), (1000, "1.0 kB"), (4_200_000, "4.2 MB"), (1_023_000_000, "1.0 GB")],
)
def test_sizes_for_people(count: int, text: str) -> None:
    assert size(count) == text


class FullHost(HostHere):
    """A host on which one file system is full; everything else is asked of this machine."""

    def run(self, subject: object, timeout: float | None = None) -> Result:
        if "df -Pk" in str(subject):
            return Result(0, f"room|/data/x|{TMPFS}|{INODES}\n")
        return super().run(command("false"))


def test_a_full_disk_says_what_is_full_and_how_much_is_left() -> None:
    said = Result(1, "", "sh: 4: cannot create /data/x: No space left on device")
    error = failure(said, FullHost("gpu1"))
    assert error.what.startswith("the disk is full (4.1 kB free of 1.0 MB on /mnt/my disk): sh: 4: ")
    assert (
        error.host == "gpu1"
        and "free space on /mnt/my disk" in error.fix
        and error.fix.startswith("on gpu1: df -h")
    )


@pytest.mark.parametrize(
    ("said", "what", "fix"),
    [
        ("x: Disk quota exceeded", "the disk quota is exceeded", "quota -s"),
        ("x: Read-only file system", "the file system is read-only", "dmesg"),
    ],
)
def test_quotas_and_disks_that_went_read_only(said: str, what: str, fix: str) -> None:
    error = failure(Result(1, "", said), FullHost("gpu1"))
    assert what in error.what and fix in error.fix


def test_this_machines_own_room(tmp_path: Path) -> None:
    """The real df: a path that is not there counts as the folder above it."""
    path = str(tmp_path / "not" / "there yet")
    room = rooms_of(HostHere("here"), path)[0]
    assert room.path == path and room.total > room.free > 0 and not room.is_full
