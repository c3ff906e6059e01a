"""Every command, option, target, path and link that the documentation names is there."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import pytest

from tests.unit import cluster_world as world
from tests.unit.docs_check import code_of, command_faults, make_targets, page_faults, verbs
from tests.unit.each import for_each
from tests.unit.layers import ORDER
from tests.unit.test_reference import errors_in_source
from toolkit.env_lint.lint import lint_inventory
from toolkit.hostsfile.parse import parse_inventory

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    str(path.relative_to(ROOT))
    for path in (
        # Not the changelog: what it says of older versions need not be there any more.
        *(page for page in sorted(ROOT.glob("*.md")) if page.name != "CHANGELOG.md"),
        *(ROOT / name for name in ("examples/README.md", "bench/README.md")),
        # Not the messages: a sentence such as "toolkit found no GPU" looks like a command, and the test below
        # covers the messages in the source.
        *(page for page in sorted((ROOT / "docs").rglob("*.md")) if page.name != "messages.md"),
    )
    if path.is_file()
]
VERBS = verbs()
TARGETS = make_targets((ROOT / "Makefile").read_text(encoding="utf-8"))
MODULES = {
    path.name
    for folder in ("toolkit", "bench", "examples", "scripts", "tests")
    for path in (ROOT / folder).rglob("*.py")
}
# Modules of Python, PyTorch, Accelerate and other libraries that the source names.
OTHER_MODULES = {
    *("dataloader.py", "distributed.py", "dynamic_rendezvous.py", "patch_print.py", "popen_fork.py"),
    *("process.py", "queue.py", "queues.py", "setup.py", "state.py", "subprocess.py", "synchronize.py"),
    "threading.py",
}


@functools.cache
def titles() -> set[str]:
    found = {step.title for plan in world.plans().values() for step in plan.steps}
    # Messages that begin like a command, such as "make room there".
    return found | {text for each in errors_in_source() for text in (each.text, each.fix)}


def faults(text: str, folder: Path = ROOT) -> list[str]:
    return page_faults(text, folder, ROOT, VERBS, TARGETS, titles())


@for_each("page", PAGES)
def test_a_page_names_only_what_there_is(page: str) -> None:
    path = ROOT / page
    assert faults(path.read_text(encoding="utf-8"), path.parent) == []


def test_the_reference_names_every_verb() -> None:
    text = "\n".join(code_of((ROOT / "docs/reference/cli.md").read_text(encoding="utf-8")))
    assert [name for name in VERBS if f"toolkit {name}" not in text] == []


@for_each("path", sorted((ROOT / "toolkit").rglob("*.py")), ids=lambda p: p.name)
def test_messages_and_comments_name_only_what_there_is(path: Path) -> None:
    """A fix that names a verb which is gone would be worse than none."""
    text = path.read_text(encoding="utf-8")
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            for call in re.findall(
                r"(?:^|(?<=[\s(`]))toolkit (?:image |lab )?[a-z]+(?: --?[a-z-]+)*", node.value
            ):
                # Sentences about the toolkit are not commands.
                if call.split()[1] in {name.split()[0] for name in VERBS} or "--" in call:
                    found += command_faults(call, VERBS)
    found += [p for p in re.findall(r"docs/[\w./-]+\.md", text) if not (ROOT / p).is_file()]
    found += sorted(set(re.findall(r"\b[a-z_]+\.py\b", text)) - MODULES - OTHER_MODULES)
    assert found == []


@for_each(
    ("text", "fault"),
    [
        ("`toolkit destroy`", "there is no verb: toolkit destroy"),
        ("    toolkit lab begin", "there is no verb: toolkit lab begin"),
        ("```\n$ toolkit image push\n```", "there is no verb: toolkit image push"),
        ("`toolkit lab up|away`", "there is no verb: toolkit lab away"),
        ("`toolkit up --frobnicate`", "toolkit up has no option --frobnicate"),
        ("`toolkit run --nodes 3 train.py --epochs 3`", "toolkit run has no option --nodes"),
        ("`toolkit --frobnicate`", "toolkit has no option --frobnicate"),
        ("| `toolkit up` | x | `--force`, `--nodes` |", "toolkit up has no option --nodes"),
        (
            "| `toolkit lab up\\|down` | x | `--rate`, `--nodes N` |",
            "toolkit lab up|down has no option --nodes",
        ),
        ("see `.ci/gone`", "there is no .ci/gone"),
        ("see `Dockerfile.tpu`", "there is no Dockerfile.tpu"),
        ("see `POLICY.md`", "there is no POLICY.md"),
        ("`make everything`", "there is no target: make everything"),
        ("    cd x && make everything", "there is no target: make everything"),
        ("see `toolkit/gone.py`", "there is no toolkit/gone.py"),
        ("see `compose/*.toml`", "there is no compose/*.toml"),
        ("[x](docs/gone.md)", "link to docs/gone.md: no such file"),
        ("# One\n\n[x](#two)", "link to #two: no such heading"),
        ("| a | b |\n| --- | --- |\n| c | d | e |", "row of 3 cells in a table of 2: | c | d | e |"),
        (
            "[x](README.md#no-such-heading-anywhere)",
            "link to README.md#no-such-heading-anywhere: no such heading",
        ),
    ],
)
def test_the_checker_sees_what_is_gone(text: str, fault: str) -> None:
    assert faults(text) == [fault]


@for_each(
    "text",
    [
        "the toolkit destroys nothing, and we make everything plain",
        "`toolkit run --np 2 train.py --anything` and `toolkit run -- cmd --anything`",
        "`toolkit exec gpu1 -- ls --color`, `toolkit VERB --help`, `toolkit -v …`, `toolkit`",
        "`toolkit --version`, `Dockerfile.cpu`, `README.md`",
        "| `toolkit run SCRIPT` | x | `--np`, `--env NAME[=VALUE]` |",
        "| `toolkit lab up\\|down` | x | `--rate`, `--keep-images` |",
        "`toolkit lab up\\|down\\|status` and `toolkit render compose|docker|ssh`",
        "`make image-cpu`, `create the state directories`",
        "`compose/*.j2`, `toolkit/container/job/rank.py`, `docs/`, `~/.local/state/toolkit/CLUSTER`",
        "| a | b |\n| --- | --- |\n| c \\| d | e |\n\n| a |\n| --- |\n| b |",
        "# A heading: with `code`\n\n[x](#a-heading-with-code) [y](https://example.com/docs/x.md) [z](docs/)",
    ],
)
def test_the_checker_lets_pass_what_is_right(text: str) -> None:
    assert faults(text) == []


HOSTS_FILES = [
    (page, text)
    for page in PAGES
    for text in re.findall(r"```yaml\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL)
    if re.search("^cluster:", text, re.MULTILINE)
]


@pytest.mark.parametrize(("page", "text"), HOSTS_FILES)
def test_hosts_files_on_pages_are_right(page: str, text: str) -> None:
    assert [each for each in lint_inventory(parse_inventory(text, page)) if each.verdict == "error"] == []


def test_the_pages_have_hosts_files() -> None:
    assert {"README.md", "docs/how-to/aws.md"} <= {page for page, _ in HOSTS_FILES}


def test_no_page_holds_both_sides_of_a_merge() -> None:
    for page in (*PAGES, "CHANGELOG.md"):
        lines = (ROOT / page).read_text(encoding="utf-8").splitlines()
        assert not [line for line in lines if line.startswith(("<<<<<<< ", ">>>>>>> "))], page


def test_the_threat_model_names_tests_that_exist() -> None:
    text = Path("SECURITY.md").read_text()
    model = text[text.index("## Threat model") : text.index("## Keys")]
    named = set(re.findall(r"`(test_\w+)`", model))
    sources = (path.read_text() for path in Path("tests").rglob("test_*.py"))
    there = {name for source in sources for name in re.findall(r"^def (test_\w+)\(", source, re.MULTILINE)}
    assert named and named <= there, named - there
    rows = [line.strip("| ").split(" | ") for line in model.splitlines() if line.startswith("| ")][2:]
    used = set(re.findall(r"\b([a-z]|\d)\b(?=[,)])", " ".join(cell for row in rows for cell in row[1:])))
    told = set(re.findall(r"^(?:- ([a-z])|(\d))\.", model, re.MULTILINE))
    assert used == {one or other for one, other in told}
    assert {len(row) for row in rows} == {6} and len(rows) == 9


ARCHITECTURE = (ROOT / "docs" / "internals" / "architecture.md").read_text(encoding="utf-8")
# Pages beside those about folders.
_OTHERS = ("architecture.md", "benchmarks.md", "faults.md", "matrix.md")
INTERNALS = {
    page.name: page.read_text(encoding="utf-8")
    for page in sorted((ROOT / "docs" / "internals").glob("*.md"))
    if page.name not in _OTHERS
}
# Two screens. A row of a table is one line, however long.
MOST_LINES, MOST_CHARACTERS = 110, 160
# The folder of the programs for hosts is in no order, because nothing imports it.
FOLDERS = (*ORDER, "container")


def test_the_architecture_fits_on_two_screens() -> None:
    lines = ARCHITECTURE.splitlines()
    assert len(lines) <= MOST_LINES
    assert [line for line in lines if len(line) > MOST_CHARACTERS and not line.startswith("|")] == []


def test_every_folder_is_in_the_tree_in_its_order() -> None:
    tree = ARCHITECTURE[ARCHITECTURE.index("    toolkit/\n") : ARCHITECTURE.index("## Flow")]
    assert tuple(re.findall(r"^ {6}([a-z_]+) ", tree, re.MULTILINE)) == FOLDERS


def test_every_verb_is_in_the_table_with_its_folder() -> None:
    table = ARCHITECTURE[ARCHITECTURE.index("## Commands") : ARCHITECTURE.index("## Rules")]
    rows = [line.split(" | ") for line in table.splitlines() if line.startswith("| `")]
    named = {word for row in rows for word in re.findall(r"`([a-z ]+)[^`]*`", row[0])}
    assert [name for name in VERBS if not {name, name.partition(" ")[0]} & named] == []
    assert {word for row in rows for word in re.findall(r"`([a-z_]+)`", row[1])} <= set(FOLDERS)


def test_every_folder_has_a_page_or_a_section() -> None:
    heads = [head for text in INTERNALS.values() for head in re.findall(r"^#+ .*", text, re.MULTILINE)]
    named = {word for head in heads for word in re.findall(r"`([a-z_]+)`", head)}
    assert set(FOLDERS) - named == set()


@for_each("page", sorted(set(INTERNALS) - {"README.md"}))
def test_a_page_about_internals_answers_what_a_newcomer_asks(page: str) -> None:
    sections = re.findall(r"^## (.*)", INTERNALS[page], re.MULTILINE)
    assert [name for name in ("Entry points", "State", "Tests") if name not in sections] == []
    assert 25 <= len(INTERNALS[page].splitlines()) <= 95


def test_the_overview_lists_every_page_about_internals() -> None:
    linked = set(re.findall(r"\]\(([a-z-]+\.md)\)", INTERNALS["README.md"]))
    assert linked == {*INTERNALS, *_OTHERS} - {"README.md"}
