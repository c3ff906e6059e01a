"""Numbers and names in the README, in SECURITY.md and in pages are those of the code: one row per claim."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from tests.unit.each import for_each
from toolkit.checks.engine import OLDEST_ENGINE, OLDEST_PODMAN
from toolkit.checks.gpu_setup import FIRST_DRIVER, OLDEST_GPU
from toolkit.cluster.ports import FIRST_MASTER_PORT, MASTER_PORTS
from toolkit.image.build_plan import LIMIT_BYTES
from toolkit.protocol.names import DEFAULT_WORKER_PORT

ROOT = Path(__file__).resolve().parents[2]


def recipe(name: str) -> str:
    """Return the value of a build argument or variable of the GPU image."""
    text = (ROOT / "Dockerfile.gpu").read_text(encoding="utf-8")
    found = re.search(rf'^(?:ARG|ENV) {name}="?([^"\n]+)"?$', text, re.MULTILINE)
    assert found, name
    return found[1]


def dotted(numbers: tuple[int, ...]) -> str:
    return ".".join(map(str, numbers))


def cuda() -> int:
    return int(recipe("CUDA_REQUIRED").partition(".")[0])


def oldest_capability() -> str:
    """Return the lowest compute capability of the image, which CUDA itself must support."""
    lowest = int(recipe("CUDA_ARCHS").split(",")[0])
    assert OLDEST_GPU[cuda()] <= divmod(lowest, 10)
    return dotted(divmod(lowest, 10))


def master_ports() -> str:
    """Return the range of ports at which jobs start their search for a MASTER_PORT."""
    return f"{FIRST_MASTER_PORT} to {FIRST_MASTER_PORT + MASTER_PORTS - 1}"


def project() -> str:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    return str(re.search(r'requires-python = ">=([\d.]+)"', text)[1])  # type: ignore[index]


# A page, the words before and after the claim, and the function that returns it from the code.
CLAIMS: list[tuple[str, str, Callable[[], object]]] = [
    ("README.md", "NVIDIA driver ≥ {}", lambda: FIRST_DRIVER[cuda()]),
    ("README.md", "compute capability ≥ {} ", oldest_capability),
    ("README.md", "Docker {}+", lambda: dotted(OLDEST_ENGINE)),
    ("README.md", "Podman {}+", lambda: dotted(OLDEST_PODMAN)),
    ("README.md", "GPU image up to {} GB", lambda: LIMIT_BYTES["gpu"] / 1e9),
    ("README.md", "Python {}+", project),
    ("SECURITY.md", "| {} (`worker_port`)", lambda: DEFAULT_WORKER_PORT),
    ("SECURITY.md", "starts at a port from {}", master_ports),
    ("docs/how-to/harden.md", "{}-32767", lambda: FIRST_MASTER_PORT),
    ("docs/how-to/harden.md", "worker_port: {}", lambda: DEFAULT_WORKER_PORT),
    ("SECURITY.md", "releases up to {},", lambda: recipe("HOROVOD_VERSION")),
    ("docs/reference/support-matrix.md", "**NVIDIA driver {} or newer**", lambda: FIRST_DRIVER[cuda()]),
    ("docs/reference/support-matrix.md", "**compute capability {} to", oldest_capability),
]


@for_each(("page", "claim", "value"), CLAIMS)
def test_a_claim_is_what_the_code_has(page: str, claim: str, value: Callable[[], object]) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    assert claim.format(value()) in text, claim.format(value())


def test_every_vulnerability_that_the_code_names_is_in_the_security_page() -> None:
    sources = (path.read_text(encoding="utf-8") for path in (ROOT / "toolkit").rglob("*.py"))
    named = {cve for text in sources for cve in re.findall(r"CVE-\d+-\d+", text)}
    known = set(re.findall(r"CVE-\d+-\d+", (ROOT / "SECURITY.md").read_text(encoding="utf-8")))
    assert named and named <= known, named - known


def test_the_readme_is_short() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 150 and len(text.split()) <= 1200


def test_the_readme_has_the_commands_of_a_first_run() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    commands = (
        *("make demo", "make test", "make image", "toolkit up --hosts hosts.yaml"),
        *("toolkit run train.py", "toolkit smoke", "toolkit down"),
    )
    assert [command for command in commands if command not in text] == []


def test_pages_have_one_install_recipe() -> None:
    """Only the flavor of the image differs, and the indentation of the block."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    recipe = re.findall(r"^(git clone .*|make image IMAGE=|\. \.venv/bin/activate)", readme, re.MULTILINE)
    assert len(recipe) == 3
    for page in ("practice-cluster", "two-gpu-hosts"):
        text = (ROOT / "docs" / "tutorials" / f"{page}.md").read_text(encoding="utf-8")
        assert re.search("\n".join(f" {{4}}{re.escape(line)}.*" for line in recipe), text), page


def test_the_readme_links_to_few_pages() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len({link for link in re.findall(r"\]\(((?!http)[^)#]+)", text) if link.endswith(".md")}) <= 12


def test_the_pictures_of_the_readme_fetch_and_run_nothing() -> None:
    for path in (ROOT / "docs" / "img").glob("session-*.svg"):
        text = path.read_text(encoding="utf-8")
        assert len(text) < 200_000 and "<script" not in text and "@font-face" not in text
        assert re.findall(r"(?:href|src|url)\W+\w+://", text) == [] and "@import" not in text


def test_make_help_lists_every_target() -> None:
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z][a-z-]*):", text, re.MULTILINE))
    assert targets == set(re.findall(r"^([a-z][a-z-]*):.*## \S", text, re.MULTILINE))
