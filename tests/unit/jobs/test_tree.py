"""Files of a folder that are sent: git's own list, their entries, and cached checksums."""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from tests.unit import cluster_world as world
from toolkit.core.code import FILE, LINK, CodeTree, Entry, size_findings
from toolkit.errors import ToolkitError
from toolkit.hostsfile.load import private_files
from toolkit.hostsfile.parse import parse_inventory
from toolkit.jobs import code as jobs_code
from toolkit.jobs.code import contents, list_files, read_tree, why_not_sent
from toolkit.jobs.make_job import private_code
from toolkit.plan.steps import Phase, Plan, SendCode

GIT = shutil.which("git")


def put(folder: Path, *names: str, text: str = "x") -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def by_git(folder: Path) -> list[str]:
    """The files that git would take, with no settings of the person's."""
    env = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "GIT_CONFIG_NOSYSTEM": "1", "LC_ALL": "C"}
    if not (folder / ".git").exists():
        subprocess.run(["git", "init", "-q"], cwd=folder, env=env, check=True)
    ask = ["git", "ls-files", "-z", "-co", "--exclude-standard"]
    out = subprocess.run(ask, cwd=folder, env=env, check=True, capture_output=True, text=True).stdout
    return sorted(out.split("\0")[:-1])


RULES = [
    "*.log",
    "!keep.log",
    "build",
    "build/",
    "/out",
    "out/*",
    "!out/keep",
    "**/cache",
    "data/**",
    "!data/**/",
    "!data/**/*.csv",
    "*.tmp\n!a/*.tmp",
    "a/b",
    "a/**/z.txt",
    "*\n!*/\n!*.py",
    "[ab].txt",
    "x?.py",
    "#comment",
    "\\#sharp",
    "trailing ",
    "sp\\ ",
    "!",
    "",
    "dir/sub/",
    "*/sub/",
    "doc/*.txt",
    "\\!bang",
    "a**b",
    "**.py",
    "a/**",
    "**/sub/*.txt",
    "[!a-b].txt",
    "[^a].txt",
    "[]a].txt",
    "[a",
    "[a-]*",
    "[\\a].txt",
    "*\\",
    "\\a.txt",
    "esc\\\\ ",
    "sub/",
    "!sub/",
    "/*\n!/data",
    "/*\n!/data/\n/data/*\n!/data/sub",
    "foo/../a.txt",
    "./a.txt",
    "//a.txt",
    "a//b",
    "é.py",
]
NAMES = ["a", "b", "build", "out", "cache", "data", "sub", "dir", "keep", "doc"]
LEAVES = [
    *("a.txt", "b.txt", "c.txt", "z.txt", "run.log", "keep.log", "x1.py", "main.py", "t.tmp", "t.csv"),
    *("keep", "build", "out", "cache", "#sharp", "!bang", "trailing", "sp ", "a b.txt", "é.py"),
]


@pytest.mark.skipif(not GIT, reason="there is no git on this machine")
@pytest.mark.parametrize("seed", range(40))
def test_the_same_files_as_git(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(40):
        folder = tmp_path.joinpath(*chance.choices(NAMES, k=chance.randrange(4)))
        try:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / chance.choice(LEAVES)).write_text("x")
        except (FileExistsError, NotADirectoryError, IsADirectoryError):
            continue  # the same name was a file before, or a folder
    folders = [tmp_path, *(p for p in sorted(tmp_path.rglob("*")) if p.is_dir())]
    for folder in [tmp_path, *chance.sample(folders, k=min(3, len(folders)))]:
        lines = chance.sample(RULES, k=chance.randrange(1, 5))
        (folder / ".gitignore").write_text(chance.choice(["\n", "\r\n"]).join(lines) + "\n")
    sent = list_files(tmp_path)
    assert list(sent) == by_git(tmp_path)
    local = [str(path.relative_to(tmp_path)) for path in sorted(tmp_path.rglob("*")) if path.is_file()]
    assert {path for path in local if not why_not_sent(tmp_path, path)} == set(sent)


@pytest.mark.parametrize(
    ("path", "lines", "reasons"),
    [
        ("train.py", {".gitignore": "*.py"}, [".gitignore excludes train.py"]),
        ("train.py", {".toolkitignore": "/train.py"}, [".toolkitignore excludes train.py"]),
        ("a/b/t.py", {".gitignore": "b/"}, [".gitignore excludes a/b/"]),
        ("a/t.py", {"a/.gitignore": "t.py", ".toolkitignore": "!a/t.py"}, ["a/.gitignore excludes a/t.py"]),
        ("#a[b]*\\?.py", {".gitignore": "*.py"}, [".gitignore excludes #a[b]*\\?.py"]),
        ("./a/../train.py", {".gitignore": "train.py"}, [".gitignore excludes train.py"]),
        ("train.py", {".gitignore": "*.py\n!train.py"}, []),
        ("link/t.py", {".gitignore": "a/"}, []),  # the target of a link does not count
        ("../outside.py", {".gitignore": "*.py"}, []),
    ],
)
def test_a_file_that_is_not_sent_is_sent_after_the_fix(
    tmp_path: Path, path: str, lines: dict[str, str], reasons: list[str]
) -> None:
    folder = tmp_path / "code"
    put(folder, "a/t.py", "../outside.py")
    (folder / "link").symlink_to("a")
    put(folder, path)
    for name, text in lines.items():
        put(folder, name, text=f"{text}\n")
    for reason in reasons:
        what, _, fix = why_not_sent(folder, path).partition(" from the code; add the line ")
        line, _, file = fix.partition(" to the end of ")
        assert what == reason
        with (folder / file).open("a") as rules:
            rules.write(f"{line}\n")
    assert why_not_sent(folder, path) == ""


@pytest.mark.parametrize("name", ["runs", "lib/.venv"])
def test_the_folder_that_is_never_sent_is_named(tmp_path: Path, name: str) -> None:
    put(tmp_path, f"{name}/train.py")
    assert why_not_sent(tmp_path, f"{name}/train.py").startswith(f"toolkit never sends the folder {name}; ")


@pytest.mark.parametrize("rules", ["!.git/\n!.venv/\n!__pycache__/\n!.lab/\n!runs/\n", "*\n!*/\n!*.py\n", ""])
def test_what_is_no_program_never_travels(tmp_path: Path, rules: str) -> None:
    put(tmp_path, "main.py", "lib/util.py")
    put(
        tmp_path,
        ".git/hook.py",
        ".venv/x.py",
        "lib/__pycache__/y.py",
        ".lab/z.py",
        "runs/w.py",
        "lib/.venv/v.py",
    )
    (tmp_path / ".gitignore").write_text(rules)
    (tmp_path / "lib" / ".gitignore").write_text("!.venv/\n")
    assert [name for name in list_files(tmp_path) if name.endswith(".py")] == ["lib/util.py", "main.py"]


def test_a_package_named_runs_travels(tmp_path: Path) -> None:
    put(tmp_path, "main.py", "lib/runs/__init__.py", "runs/job/result.py")
    assert list_files(tmp_path) == ("lib/runs/__init__.py", "main.py")


def test_what_why_and_report_have_written_does_not_travel(tmp_path: Path) -> None:
    put(tmp_path, "why-20261122-232409-long-b2c2.tar.gz", "lib/report-20261122-232409-long-b2c2.html")
    put(tmp_path, "why-not.tar.gz", "report-2.html")
    assert list(list_files(tmp_path)) == ["report-2.html", "why-not.tar.gz"]


def test_our_own_ignore_file_counts_after_gits(tmp_path: Path) -> None:
    put(tmp_path, "a.bin", "b.bin", "model.pt", "main.py")
    (tmp_path / ".gitignore").write_text("*.bin\n")
    (tmp_path / ".toolkitignore").write_text("*.pt\n!b.bin\n")
    assert list_files(tmp_path) == (".gitignore", ".toolkitignore", "b.bin", "main.py")


@pytest.mark.parametrize("head", [b"\xef\xbb\xbf", b"\xff\n"])
def test_ignore_files_as_editors_write_them(tmp_path: Path, head: bytes) -> None:
    put(tmp_path, "a.log", "main.py")
    (tmp_path / ".gitignore").write_bytes(head + b"*.log\r\n")
    assert list_files(tmp_path) == (".gitignore", "main.py")


def test_no_folder(tmp_path: Path) -> None:
    with pytest.raises(ToolkitError, match="is not a folder"):
        list_files(tmp_path / "absent")


def test_what_the_entries_say(tmp_path: Path) -> None:
    code, cache = tmp_path / "code", tmp_path / "cache"
    put(code, "train.py", "lib/é.py", text="print(1)\n")
    (code / "run.sh").write_text("#!/bin/sh\n")
    (code / "run.sh").chmod(0o4777)
    (code / "key").write_text("k")
    (code / "key").chmod(0o600)
    (code / "link").symlink_to("./lib//é.py")
    (code / "linked").symlink_to("lib")
    (code / "dangling").symlink_to("/no/where")
    os.mkfifo(code / "pipe")
    (code / "empty").mkdir()
    os.utime(code / "train.py", ns=(1, 1_234_567_890_123_456_789))
    entries = {entry.path: entry for entry in read_tree(code, cache).entries}
    assert list(entries) == ["dangling", "key", "lib/é.py", "link", "linked", "run.sh", "train.py"]
    sha = hashlib.sha256(b"print(1)\n").hexdigest()
    assert entries["train.py"] == Entry("train.py", FILE, 0o644, 9, 1_234_567_890_123_456_789, sha)
    assert (entries["run.sh"].mode, entries["key"].mode) == (0o755, 0o600)
    assert entries["link"] == Entry("link", LINK, 0, 0, 0, "./lib//é.py")
    assert entries["linked"].kind == LINK and entries["dangling"].content == "/no/where"


def test_file_names_that_are_not_text(tmp_path: Path) -> None:
    names = [b"a b", b"line\nbreak", b"\xff\xfe", "日本".encode()]
    for name in names:
        (tmp_path / os.fsdecode(name)).write_bytes(name)
    tree = read_tree(tmp_path, tmp_path.parent / "cache")
    assert sorted(os.fsencode(entry.path) for entry in tree.entries) == sorted(names)
    assert b"".join(contents(tmp_path, tree.entries)) == b"".join(
        os.fsencode(entry.path) for entry in tree.entries
    )
    assert tree.digest == read_tree(tmp_path, tmp_path.parent / "cache").digest


def age(folder: Path) -> None:
    """Let the files be older than what may still be written in the same moment."""
    for path in folder.iterdir():
        os.utime(path, ns=(1, time.time_ns() - 60 * 10**9))


def test_a_changed_file_is_hashed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, cache = tmp_path / "code", tmp_path / "cache"
    put(code, "a.py", "b.py")
    read: list[str] = []
    real = jobs_code._read_digest
    monkeypatch.setattr(jobs_code, "_read_digest", lambda file: (read.append(Path(file).name), real(file))[1])
    age(code)
    # A ctime cannot be set, so a file counts as just written for two seconds.
    monkeypatch.setattr(jobs_code, "_SETTLED_NS", 0)
    first = read_tree(code, cache)
    assert (read_tree(code, cache), read) == (first, ["a.py", "b.py"])
    about = (code / "a.py").stat()
    (code / "a.py").write_text("y")
    os.utime(code / "a.py", ns=(about.st_atime_ns, about.st_mtime_ns))
    second = read_tree(code, cache)
    assert read[2:] == ["a.py"] and second.digest != first.digest


def test_a_file_of_this_moment_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, cache = tmp_path / "code", tmp_path / "cache"
    put(code, "a.py")
    frozen = (code / "a.py").stat()
    first = read_tree(code, cache)
    # The same size, and as far as the file system can tell the same times.
    (code / "a.py").write_text("y")
    same = os.stat_result(frozen)
    monkeypatch.setattr(jobs_code, "_seen", lambda about: (1, same.st_mtime_ns, same.st_ctime_ns, 1))
    assert read_tree(code, cache).digest != first.digest


@pytest.mark.parametrize("text", ["", "{", "[]", '{"a.py": 3}', '{"a.py": ["x"]}', '{"a.py": [1,2,3,4]}'])
def test_an_invalid_cache_is_recreated(tmp_path: Path, text: str) -> None:
    code, cache = tmp_path / "code", tmp_path / "cache"
    put(code, "a.py")
    first = read_tree(code, cache)
    for file in cache.iterdir():
        file.write_text(text)
    assert read_tree(code, cache) == first
    cache_is_a_file = tmp_path / "no"
    cache_is_a_file.write_text("")
    assert read_tree(code, cache_is_a_file / "cache") == first


def test_a_file_that_is_written_all_the_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path, "log.txt")
    ticks = iter(range(100))
    monkeypatch.setattr(jobs_code, "_seen", lambda about: (next(ticks), 0, 0, 0))
    with pytest.raises(ToolkitError, match=r"folder changed while .*log\.txt") as found:
        read_tree(tmp_path, tmp_path.parent / "cache")
    assert ".toolkitignore" in found.value.fix


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    put(tmp_path, "a.py", "b.py")
    tree = read_tree(tmp_path, tmp_path.parent / "cache")
    (tmp_path / "b.py").unlink()
    with pytest.raises(ToolkitError, match=r"cannot read the code to send.*b\.py") as found:
        b"".join(contents(tmp_path, tree.entries))
    assert found.value.fix.startswith("run the same command again"), "the file was removed meanwhile"
    (tmp_path / "b.py").write_text("")
    with pytest.raises(ToolkitError, match=r"b\.py became shorter while toolkit sent the code"):
        b"".join(contents(tmp_path, tree.entries))
    if os.getuid():  # root reads everything
        (tmp_path / "a.py").chmod(0)
        with pytest.raises(ToolkitError, match=r"Permission denied: .*a\.py"):
            read_tree(tmp_path, tmp_path.parent / "cache")


def entry(path: str, size: int) -> Entry:
    return Entry(path, FILE, 0o644, size, 0, "0" * 64)


def test_big_files_are_named_with_the_cure() -> None:
    million = 10**6
    assert size_findings(CodeTree((entry("a", 50 * million),))) == size_findings(CodeTree()) == ()
    assert size_findings(CodeTree(tuple(entry(f"{n}", 10 * million) for n in range(50)))) == ()
    (big,) = size_findings(CodeTree((entry("a.pt", 60 * million), entry("b.py", 5))))
    assert "a.pt (60 MB)" in big.what and "b.py" not in big.what and ".toolkitignore" in big.fix
    (much,) = size_findings(CodeTree(tuple(entry(f"{n:02}", 11 * million) for n in range(50))))
    assert "is 550 MB; largest files" in much.what and "00 (11 MB)" in much.what
    many = size_findings(CodeTree(tuple(entry(f"{n:02}", 51 * million) for n in range(8))))[0].what
    assert many.endswith("04 (51 MB) and 3 more")


def test_buckets_grow_in_number_with_the_tree() -> None:
    assert CodeTree().number == CodeTree(tuple(entry(f"{n}", 1) for n in range(10_000))).number == 256
    large = CodeTree(tuple(entry(f"{n}", 1) for n in range(40_000)))
    assert large.number == 512 and len(large.marks) == 8 * 512
    assert sum(len(large.of_buckets(list(range(n, 512, 8)))) for n in range(8)) == 40_000
    assert 0 < len(large.of_buckets([511])) < 400


# What must stay on this machine


def test_secrets_and_keys_and_the_hosts_file_are_never_sent(tmp_path: Path) -> None:
    """Whatever name they lie under, and whatever the ignore files say."""
    code, cache = tmp_path / "code", tmp_path / "cache"
    code.mkdir()
    key = "-----BEGIN OPENSSH PRIVATE KEY-----\nabc\n"
    (code / "hosts.yaml").write_text("cluster: demo\n")
    (code / "token.txt").write_text("hunter2\n")
    (code / "same").hardlink_to(code / "token.txt")
    (code / "id_work").write_text(key)
    (code / "server.pem").write_text("-----BEGIN RSA PRIVATE KEY-----\n")
    (code / "both.pem").write_text(f"-----BEGIN CERTIFICATE-----\n{'A' * 3000}\n{key}")
    (code / "public.pem").write_text("-----BEGIN CERTIFICATE-----\n")
    (code / "id_numbers.py").write_text("print(1)\n")
    (code / ".ssh").mkdir()
    (code / ".ssh/anything").write_text(key)
    (code / "link").symlink_to("token.txt")
    (code / "gone.pem").symlink_to("not there")
    (code / "how-to.md").write_text(key)
    tree = read_tree(code, cache, [code / "hosts.yaml", code / "token.txt", code / "not there"])
    assert tree.private == ("both.pem", "hosts.yaml", "id_work", "same", "server.pem", "token.txt")
    sent = {entry.path for entry in tree.entries}
    assert {"public.pem", "id_numbers.py", "link", "gone.pem", "how-to.md"} <= sent
    assert not sent & {*tree.private, ".ssh/anything"}


def test_the_hosts_file_is_no_private_file_to_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is in the folder of most projects, and a line about it in every run has no use."""
    monkeypatch.chdir(tmp_path)
    tree = CodeTree(private=("hosts.yaml", "token.txt"))
    step = SendCode("gpu1", "send", "main", "/job", str(tmp_path), tree, "")
    plan = Plan("run", (Phase("code", (step,)),))
    assert private_code(plan, "hosts.yaml") == ("token.txt",)
    assert private_code(plan, "../hosts.yaml") == private_code(plan) == ("hosts.yaml", "token.txt")
    assert private_code(Plan("run", ())) == ()


def test_the_files_of_a_cluster_that_stay_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    text = world.HOSTS.replace("address: 10.77.0.2", "address: 10.77.0.2\n    identity_file: ~/keys/one")
    inventory = parse_inventory(f"{text}secrets: {{A: token, B: ~/b}}\n", "conf/hosts.yaml")
    assert private_files(inventory) == (
        Path("conf/hosts.yaml"),
        Path("conf/token"),
        tmp_path / "b",
        tmp_path / "keys/one",
    )
