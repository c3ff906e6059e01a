"""Numbers and names on pages of reference and explanation, compared with the code that they describe."""

from __future__ import annotations

import re
from pathlib import Path

from tests.unit.each import for_each
from toolkit.checks.containers import LEAST_FILES, LEAST_SHM
from toolkit.checks.engine import OLDEST_ENGINE, OLDEST_PODMAN
from toolkit.checks.gpu_setup import FIRST_DRIVER, OLDEST_GPU
from toolkit.checks.machine import STOP_AHEAD, WARN_AHEAD
from toolkit.checks.registry import CHECKS
from toolkit.cli.common import EXIT_CLOSED_PIPE
from toolkit.cluster.pairs import CONNECT_SECONDS
from toolkit.cluster.ports import FIRST_MASTER_PORT, MASTER_PORTS
from toolkit.cluster.probe_containers import LIFE_SECONDS
from toolkit.container.conventions import HEARTBEAT_S, LEASE_S, LOST_S
from toolkit.container.job.attempt import FAILED_GRACE_S
from toolkit.container.job.lease import DEATH_S, LAPSE_GRACE_S
from toolkit.container.job.orphans import CONNECT_S
from toolkit.container.job.restarts import CALM_S, FIRST_WAIT_S, MOST_WAIT_S, SUSPECT
from toolkit.container.logs.lines import BAR_S
from toolkit.core.command import TIMED_OUT
from toolkit.errors import EXIT_CODES
from toolkit.hostsfile.fields import LAUNCHER_NAMES, NETWORKS
from toolkit.hostsfile.inventory import Inventory
from toolkit.image.cuda import CUDA_VARIANTS, CudaVariant
from toolkit.jobs.logs import _PAUSES
from toolkit.jobs.request import Request
from toolkit.jobs.script_imports import _EXPECTED, FALLBACK
from toolkit.launchers import ELASTIC
from toolkit.network.measured import shown_bytes
from toolkit.network.tuning import LEAST_GAIN, MOST_LOSS, SIZES, trials
from toolkit.protocol.names import DEFAULT_LOG_BYTES, DEFAULT_WORKER_PORT
from toolkit.protocol.outcomes import EXIT_BROKEN, EXIT_LOST, EXIT_NO_LOG, EXIT_STARTED, EXIT_USAGE, JobState
from toolkit.protocol.transport import INSTEAD, WITHOUT_SSH
from toolkit.remote.keepalive import EVERY_S, SILENCE_S
from toolkit.remote.ssh import _DIAL_S

ROOT = Path(__file__).resolve().parents[2]
LIFE, HOW = "explanation/job-lifecycle.md", "explanation/how-it-works.md"
NETWORK, TRANSPORT = "explanation/network.md", "explanation/transport.md"
MATRIX, EXITS = "reference/support-matrix.md", "reference/exit-codes.md"
IMAGES = "how-to/images.md"
LAUNCHERS, CHECK, ENV = "reference/launchers.md", "reference/checks.md", "reference/environment.md"


def text_of(page: str) -> str:
    return (ROOT / "docs" / page).read_text(encoding="utf-8")


def rows(page: str, heading: str = "") -> list[list[str]]:
    """Return the cells of the table rows of a page, or of the section with this heading."""
    text = text_of(page)
    if heading:
        text = text[text.index(f"\n{heading}\n") + len(heading) + 2 :]
        text = re.split(r"^#{1,6} ", text, maxsplit=1, flags=re.MULTILINE)[0]
    lines = [line for line in text.splitlines() if line.startswith("| ") and not line.startswith("| ---")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def dockerfile(name: str, arg: str) -> str:
    found = re.search(rf"^(?:ARG|ENV) {arg}=\"?([^\"\n]*)", (ROOT / name).read_text(), re.MULTILINE)
    assert found
    return found[1]


def table_version(name: str) -> str:
    text = (ROOT / "toolkit" / "env_lint" / "tables" / name).read_text(encoding="utf-8")
    found = re.search(r"^library (.+)$", text, re.MULTILINE)
    assert found
    return found[1]


def _dotted(numbers: tuple[int, ...]) -> str:
    return ".".join(map(str, numbers))


def _cells(variant: CudaVariant) -> tuple[str, ...]:
    """Return cells of the table that compares the GPU images."""
    torch = variant.arguments.get("TORCH_VERSION", dockerfile("Dockerfile.gpu", "TORCH_VERSION"))
    arm64 = variant.oldest_arm64 and f" (arm64: {_dotted(variant.oldest_arm64)} to {variant.newest}.x)"
    return (
        f"`{variant.image}`",
        f"`{variant.build}`",
        f"| {torch}, ",
        f"| {variant.driver} |",
        f"| {_dotted(variant.oldest)} to {variant.newest}.x{arm64 or ''} |",
    )


CUDA = dockerfile("Dockerfile.gpu", "CUDA_REQUIRED")
MAJOR = int(CUDA.partition(".")[0])
OLDEST = ".".join(map(str, OLDEST_GPU[MAJOR]))
OLDER = CUDA_VARIANTS[1]
FAST, SLOW, HORIZON = 5, 20, 15  # seconds that pages state for a lost host, and for ranks without main

CLAIMS = [
    (MATRIX, f"contains CUDA {CUDA}"),
    (
        MATRIX,
        f"**NVIDIA driver {FIRST_DRIVER[MAJOR]} or newer** and GPUs of **compute capability {OLDEST} to",
    ),
    (
        MATRIX,
        f"needs driver {OLDER.driver} or newer and GPUs of compute capability {_dotted(OLDER.oldest)} to"
        f" {OLDER.newest}.x",
    ),
    (MATRIX, f"GPU image with CUDA {OLDER.major}, torch {OLDER.arguments['TORCH_VERSION']}"),
    *((IMAGES, cell) for variant in CUDA_VARIANTS for cell in _cells(variant)),
    (
        MATRIX,
        f"CUDA {MAJOR} with a driver older than {FIRST_DRIVER[MAJOR]},"
        f" or with a GPU of compute capability below {OLDEST}",
    ),
    (MATRIX, f"Docker {'.'.join(map(str, OLDEST_ENGINE))} or Podman {'.'.join(map(str, OLDEST_PODMAN))}"),
    (MATRIX, f"Horovod {dockerfile('Dockerfile.cpu', 'HOROVOD_VERSION')} | not supported"),
    (
        CHECK,
        f"Docker older than {'.'.join(map(str, OLDEST_ENGINE))},"
        f" or Podman older than {'.'.join(map(str, OLDEST_PODMAN))}",
    ),
    (CHECK, f"by more than {WARN_AHEAD:g} s (warning) or {STOP_AHEAD:g} s (error)"),
    (CHECK, f"`/dev/shm` smaller than {shown_bytes(LEAST_SHM)}"),
    (CHECK, f"fewer than {LEAST_FILES} open files for ranks"),
    (
        CHECK,
        f"(minimum: driver {FIRST_DRIVER[MAJOR]} for the GPU image, {FIRST_DRIVER[12]} with `--cuda 12`)",
    ),
    (CHECK, f"({OLDEST} for the GPU image)"),
    (CHECK, f"for at most {CONNECT_SECONDS:g} s. If a host does not answer, toolkit repeats the test once"),
    (CHECK, f"or after {LIFE_SECONDS} s"),
    (LIFE, f"SIGTERM to the ranks, and SIGKILL after {Request.grace:g} s"),
    (LIFE, f"detects the loss within {FAST} s once ranks run, and within {SLOW} s while ranks start"),
    (LIFE, f"stop their ranks within {HORIZON} s"),
    (LIFE, f"on which {SUSPECT} attempts failed"),
    (LIFE, f"{FIRST_WAIT_S:g} s after the first failure, then 2 s, 4 s and so on, at most {MOST_WAIT_S:g} s"),
    (LIFE, f"more than {CALM_S / 60:g} minutes"),
    (LIFE, f"a progress bar at most once per {BAR_S:g} s"),
    (LIFE, f"`log_size` (default {DEFAULT_LOG_BYTES >> 20} MiB)"),
    (HOW, f"port {DEFAULT_WORKER_PORT}"),
    (LAUNCHERS, f"from {FIRST_MASTER_PORT} to {FIRST_MASTER_PORT + MASTER_PORTS - 1}"),
    (NETWORK, f"at least {LEAST_GAIN:.0%} faster for".replace("%", " %")),
    (NETWORK, f"at most {MOST_LOSS:.0%} slower for".replace("%", " %")),
    (NETWORK, ", ".join(map(shown_bytes, SIZES[:-1])) + f" and {shown_bytes(SIZES[-1])}"),
    (TRANSPORT, f"within about {SILENCE_S + EVERY_S + sum(_PAUSES) + len(_PAUSES) * _DIAL_S:g} s"),
    (EXITS, f"| {TIMED_OUT} | `timeout` |"),
    *(
        (EXITS, f"| {code} | `failed` |")
        for code in (EXIT_USAGE, EXIT_STARTED, EXIT_LOST, EXIT_BROKEN, EXIT_NO_LOG)
    ),
    (LAUNCHERS, f"| `{Inventory.launcher}` (default) |"),
    (ENV, f"PyTorch {dockerfile('Dockerfile.gpu', 'TORCH_VERSION')}"),
    (ENV, f"Horovod {dockerfile('Dockerfile.gpu', 'HOROVOD_VERSION')}"),
    *((ENV, f"| `{name}` | {table_version(name)}") for name in ("nccl.txt", "torch.txt", "horovod.txt")),
]


@for_each(("page", "claim"), CLAIMS)
def test_a_page_states_what_the_code_does(page: str, claim: str) -> None:
    assert claim in text_of(page)


def test_stated_times_leave_room_for_the_limits_of_the_code() -> None:
    assert LOST_S + HEARTBEAT_S < FAST and CONNECT_S <= SLOW
    assert LEASE_S + LAPSE_GRACE_S < HORIZON
    assert DEATH_S + FAILED_GRACE_S < 3, "a failed rank, until the others have ended"


def test_times_of_the_history_are_within_the_stated_ones() -> None:
    """Seconds to notice a worker that is frozen or partitioned, while ranks start and once they run."""
    from tests.faults.history import parse_history

    kept = parse_history(text_of("internals/faults-history.jsonl"))
    noticed = {True: [0.0], False: [0.0]}
    for row in kept:
        lost = row.fault in ("link-cut", "worker-stop", "host-stop")
        if lost and row.phase in ("launch", "step", "checkpoint") and row.notice_s is not None:
            noticed[row.phase == "launch"].append(row.notice_s)
    assert 10 < max(noticed[True]) <= SLOW and 3 < max(noticed[False]) <= FAST


def test_the_page_has_every_launcher() -> None:
    named = {re.sub(r"[`(].*?[`)]", lambda m: m[0].strip("`"), row[0]) for row in rows(LAUNCHERS)[1:10]}
    assert {name.removesuffix("(default)").strip() for name in named} == set(LAUNCHER_NAMES)
    first = [row[0].strip("`") for row in rows(MATRIX, "## Launchers and frameworks") if row[0][0] == "`"]
    assert set(first) == set(LAUNCHER_NAMES) - {"auto"}


def test_the_page_has_the_order_of_imports() -> None:
    table = rows(LAUNCHERS, "## `auto`")[1:]
    found = [
        (module, re.findall(r"`([^`]+)`", row[1])[0])
        for row in table
        for module in re.findall(r"`([^`]+)`", row[0])
    ]
    assert found == list(_EXPECTED)
    assert table[-1][1] == f"`{FALLBACK}`"


def test_pages_name_the_launchers_without_ssh() -> None:
    refused = sorted(set(LAUNCHER_NAMES) - {"auto", *WITHOUT_SSH})
    line = text_of(TRANSPORT).partition("With `exec`, toolkit refuses ")[2].partition("\n")[0]
    assert sorted(re.findall(r"`([^`]+)`", line.partition(". ")[0])) == refused
    assert set(INSTEAD.values()) <= set(re.findall(r"`([^`]+)`", line.partition(". ")[2]))
    for name in ELASTIC:
        assert f"`--launcher {name} --elastic`" in text_of(LIFE)


def test_the_page_has_every_exit_code_of_toolkit() -> None:
    codes = {int(row[0]) for row in rows(EXITS, "## toolkit") if row[0].isdigit()}
    # The last entry describes three more codes.
    assert codes == {*EXIT_CODES, 129, 141, 143}


def test_the_page_has_the_exit_code_after_a_closed_pipe() -> None:
    assert f"| {EXIT_CLOSED_PIPE} | The program that reads the output closed the pipe" in text_of(EXITS)


def test_the_page_has_every_state_of_a_job() -> None:
    states = {row[0].strip("`") for row in rows(LIFE, "## States") if row[0].startswith("`")}
    assert states == {state.value for state in JobState} | {"lost", "unknown"}


def test_the_page_has_every_profile_and_trial_of_the_network() -> None:
    profiles = [row[0] for row in rows(NETWORK, "## Network profiles") if row[0].startswith("`")]
    assert [name.split("`")[1] for name in profiles] == list(NETWORKS)
    for trial in trials("mpi"):
        assert all(name in text_of(NETWORK) for name, _ in trial.env), trial.name


def test_a_check_is_described_once() -> None:
    named = [row[0].strip("`") for row in rows(CHECK) if row[0].startswith("`")]
    assert sorted(named) == sorted(check.id for check in CHECKS)


def test_tests_that_the_support_matrix_names_exist() -> None:
    named = re.findall(r"`((?:tests|bench)/[\w./-]+)`", text_of(MATRIX))
    assert len(named) > 20 and [name for name in named if not (ROOT / name).exists()] == []
