"""Carrying a build out: the wheelhouse, the context, and errors that say what to do."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import io
import sys
import tarfile
import threading
import zipfile
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.container_world import PATIENCE_S
from toolkit.api.image import ImagePart
from toolkit.core.command import Command, command
from toolkit.errors import CommandFailed, ImageError, MissingTool
from toolkit.image.build import (
    assemble_context,
    build_image,
    exclusive_build,
    fill_wheelhouse,
    read_sources,
    resolve,
    source_folder,
    wheelhouse_files,
)
from toolkit.image.build_plan import CONTEXT_FILES
from toolkit.image.build_values import CONTEXT_FOLDERS, Fetch, ImageBuild, Locked, Wheelhouse
from toolkit.image.wheelhouse import Target, parse_pins, wheel_fetches
from toolkit.remote.local_image import built_images, default_cache, note_built


def python(code: str, stdin: bytes | None = None) -> Command:
    return command(sys.executable, "-c", code, stdin=stdin)


def build_in(folder: Path, **changes: object) -> ImageBuild:
    values: dict[str, object] = {
        "flavor": "cpu",
        "tag": "toolkit:cpu",
        "wheelhouses": (house(folder),),
        "context": str(folder / "context"),
        "files": (("Dockerfile", "FROM x\n"), ("image/a.txt", "a")),
        "certificate": "",
        "command": python("pass"),
        "limit_bytes": 0,
    }
    return ImageBuild(**{**values, **changes})  # type: ignore[arg-type]


def house(folder: Path, name: str = "wheels", **changes: Any) -> Wheelhouse:
    return Wheelhouse(str(folder / name), **{"into": name, **changes})


def quiet(title: str, line: str) -> None:
    pass


def test_whole_and_cut_off_packages_are_told_apart(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a-1-py3-none-any.whl", "w") as wheel:
        wheel.writestr("a.py", "x = 1\n" * 100)
    whole = (tmp_path / "a-1-py3-none-any.whl").read_bytes()
    (tmp_path / "b-1-py3-none-any.whl").write_bytes(whole[:-30])
    with tarfile.open(tmp_path / "c-1.tar.gz", "w:gz") as sdist:
        sdist.addfile(tarfile.TarInfo("c/setup.py"), io.BytesIO())
    (tmp_path / "d-1.tar.gz").write_bytes((tmp_path / "c-1.tar.gz").read_bytes()[:40])
    assert list(wheelhouse_files(str(tmp_path)).values()) == [True, False, True, False]
    assert wheelhouse_files(str(tmp_path / "absent")) == {}


def test_the_first_alternative_that_succeeds_is_enough(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    fetch = Fetch(
        "thing",
        (
            python("raise SystemExit(1)"),
            python(f"import sys; open({str(mark)!r}, 'w').write(sys.stdin.read())", stdin=b"secret"),
            python("raise SystemExit('not reached')"),
        ),
        "no thing",
        "make one",
    )
    fill_wheelhouse(build_in(tmp_path, wheelhouses=(house(tmp_path, fetches=(fetch,)),)), quiet)
    assert mark.read_text() == "secret"


def test_when_none_succeeds_the_error_says_what_to_set(tmp_path: Path) -> None:
    fetch = Fetch("thing", (python("print('ERROR: nothing'); raise SystemExit(1)"),), "no thing", "set X")
    with pytest.raises(ImageError) as caught:
        fill_wheelhouse(build_in(tmp_path, wheelhouses=(house(tmp_path, fetches=(fetch,)),)), quiet)
    assert caught.value.what == "no thing\n    | ERROR: nothing"
    assert caught.value.fix == "set X"


RETRY = (
    "WARNING: Retrying (Retry(total=0, connect=None, read=None, redirect=None, status=None)) after "
    "connection broken by 'NewConnectionError(\"HTTPSConnection(host='pypi.org', port=443): Failed to "
    "establish a new connection: [Errno 111] Connection refused\")': "
)
NO_FILE = (
    "ERROR: Could not install packages due to an OSError: HTTPConnectionPool(host='p', port=9): Max retries "
    "exceeded with url: /a.whl"
)
NO_VERSION = (
    "ERROR: Could not find a version that satisfies the requirement idna (from versions: none)",
    "ERROR: No matching distribution found for idna",
)


@pytest.mark.parametrize(
    ("lines", "shown"),
    [
        ((f"{RETRY}/simple/idna/", *NO_VERSION), f"{RETRY}/simple/idna/"),
        ((NO_FILE,), NO_FILE),
        ((f"  {RETRY}/a.whl", "error: connection-failed", "× Failed to connect to p"), f"{RETRY}/a.whl"),
    ],
    ids=["page of a package", "file, pip 23", "file, pip 26"],
)
def test_pip_without_a_connection_is_no_conflict_of_versions(lines: tuple[str, ...], shown: str) -> None:
    """The lines that pip 23.2 and 26.3 print."""
    with pytest.raises(ImageError) as caught:
        resolve(python(f"raise SystemExit({chr(10).join(lines)!r})"), "more.txt")
    assert caught.value.what == (
        f"pip cannot resolve more.txt, because the connection to a package index failed\n    | {shown}"
    )
    assert caught.value.fix.startswith("python3 -m pip config list  # check index, proxy")


def test_the_password_in_a_url_that_pip_prints_is_masked(tmp_path: Path) -> None:
    """pip 23.2 prints the URL of a requirement as it is."""
    failing = python("raise SystemExit('ERROR: Cannot install x@ https://me:s3cret@y.example/x.whl')")
    fetch = Fetch("wheels", (failing,), "pip cannot fetch the wheels", "fix")
    build = build_in(tmp_path, wheelhouses=(house(tmp_path, fetches=(fetch,)),))
    printed: list[str] = []
    for make in (
        lambda: resolve(failing, "more.txt"),
        lambda: fill_wheelhouse(build, lambda title, line: printed.append(line)),
    ):
        with pytest.raises(ImageError) as caught:
            make()
        printed.append(caught.value.what)
    assert all("s3cret" not in line for line in printed)
    assert sum("https://***@y.example/x.whl" in line for line in printed) == 3


@pytest.mark.parametrize(
    "lines",
    [
        NO_VERSION,
        (f"{RETRY}/simple/idna/", NO_VERSION[0].replace("none", "3.6, 3.7")),
        (f"{RETRY}/simple/idna/", "ERROR: ResolutionImpossible: for help visit https://pip.pypa.io"),
    ],
    ids=["no wheel", "another version", "conflict"],
)
def test_versions_that_conflict_are_reported_even_after_a_connection_that_broke(
    lines: tuple[str, ...],
) -> None:
    with pytest.raises(ImageError, match=r"pip cannot resolve .*more.* for the image") as caught:
        resolve(python(f"raise SystemExit({chr(10).join(lines)!r})"), "more.txt")
    assert "WARNING" not in caught.value.what and caught.value.fix.startswith("change more")


def test_a_python_without_pip_is_named_before_the_requirements(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    ran = tmp_path / "ran"
    with pytest.raises(MissingTool, match="the Python that runs toolkit has no pip") as caught:
        resolve(python(f"open({str(ran)!r}, 'w')"), "more.txt")
    assert f"{sys.executable} -m ensurepip" in caught.value.fix and not ran.exists()
    fetch = Fetch("thing", (python("pass"),), "", "")
    with pytest.raises(MissingTool, match="has no pip"):
        fill_wheelhouse(build_in(tmp_path, wheelhouses=(house(tmp_path, fetches=(fetch,)),)), quiet)


def locked_house(folder: Path, text: str, **changes: Any) -> Wheelhouse:
    """A wheelhouse with one locked wheel, whose file contains the text; the lock has "good"."""
    (folder / "wheels").mkdir()
    (folder / "wheels/a_b-1.0-py3-none-any.whl").write_text(text)
    locked = Locked("A.b", "1.0", (hashlib.sha256(b"good").hexdigest(), "0" * 64))
    return house(folder, locked=(locked,), **changes)


def test_an_altered_wheel_is_refused_by_name_before_anything_uses_it(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    fetch = Fetch("thing", (python(f"open({str(mark)!r}, 'w')"),), "", "")
    build = build_in(tmp_path, wheelhouses=(locked_house(tmp_path, "evil", fetches=(fetch,)),))
    with pytest.raises(ImageError) as caught:
        build_image(build, quiet)
    file = tmp_path / "wheels/a_b-1.0-py3-none-any.whl"
    what = "the SHA-256 of 1 package file differs from the value in image/wheels.lock, or from the value that"
    assert caught.value.what == f"{what} pip reported for --pip:\n    {file}"
    assert caught.value.fix.startswith(f"rm {file}  #")
    assert file.exists() and not mark.exists() and not Path(build.context).exists()


def test_a_wheel_of_the_lock_and_one_without_an_entry_are_accepted(tmp_path: Path) -> None:
    wheels = locked_house(tmp_path, "good")
    (tmp_path / "wheels/other-1.0-py3-none-any.whl").write_text("anything")
    fill_wheelhouse(build_in(tmp_path, wheelhouses=(wheels,)), quiet)


def test_a_file_that_a_fetch_brings_is_checked_as_well(tmp_path: Path) -> None:
    file = tmp_path / "wheels/a_b-1.0-py3-none-any.whl"
    fetch = Fetch("thing", (python(f"open({str(file)!r}, 'w').write('evil')"),), "", "")
    wheels = locked_house(tmp_path, "good", fetches=(fetch,))
    file.unlink()
    with pytest.raises(ImageError, match="SHA-256 of 1 package file"):
        fill_wheelhouse(build_in(tmp_path, wheelhouses=(wheels,)), quiet)


def test_pip_refuses_a_file_with_another_hash_and_the_error_has_both(tmp_path: Path) -> None:
    """The real pip, with the command line of a build and a folder as its only source."""
    source = tmp_path / "source"
    source.mkdir()
    with zipfile.ZipFile(source / "a_b-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("a_b-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: a-b\nVersion: 1.0\n")
        wheel.writestr("a_b-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr("a_b-1.0.dist-info/RECORD", "")
    digest = hashlib.sha256((source / "a_b-1.0-py3-none-any.whl").read_bytes()).hexdigest()
    (pin,) = parse_pins("a-b==1.0", {})
    for expected in (digest, "0" * 64):
        locked = (Locked("a-b", "1.0", (expected,)),)
        folder = str(tmp_path / "wheels")
        (fetch,) = wheel_fetches((pin,), Target("3.11", "x86_64"), folder, sys.executable, "", locked=locked)
        words = fetch.alternatives[0].argv
        offline = command(
            *words, "--no-index", "--find-links", str(source), stdin=fetch.alternatives[0].stdin
        )
        wheels = house(tmp_path, fetches=(replace(fetch, alternatives=(offline,)),), locked=locked)
        build = build_in(tmp_path, wheelhouses=(wheels,))
        if expected == digest:
            fill_wheelhouse(build, quiet)
            (tmp_path / "wheels/a_b-1.0-py3-none-any.whl").unlink()
            continue
        with pytest.raises(ImageError) as caught:
            fill_wheelhouse(build, quiet)
        assert expected in caught.value.what and digest in caught.value.what


def test_the_context_is_recreated_from_files_wheels_and_certificate(tmp_path: Path) -> None:
    wheelhouse = tmp_path / "wheels"
    wheelhouse.mkdir()
    (wheelhouse / "a-1.whl").write_text("wheel")
    (wheelhouse / "build-tools").mkdir()
    (tmp_path / "ca.pem").write_text("CA")
    (tmp_path / "context").mkdir()
    (tmp_path / "context" / "left-over").touch()
    assemble_context(build_in(tmp_path, certificate=str(tmp_path / "ca.pem")))
    files = {
        str(p.relative_to(tmp_path / "context")) for p in (tmp_path / "context").rglob("*") if p.is_file()
    }
    assert files == {"Dockerfile", "image/a.txt", "wheels/a-1.whl", "certs/site.crt"}
    assert {path.name for path in (tmp_path / "context").iterdir() if path.is_dir()} == {
        "image",
        *CONTEXT_FOLDERS,
    }


def test_wheels_that_two_lists_want_are_in_the_context_once(tmp_path: Path) -> None:
    for name, files in {"wheels": ["a-1.whl"], "one": ["b-1.whl", "c-1.whl"], "two": ["c-1.whl"]}.items():
        (tmp_path / name).mkdir()
        for file in files:
            (tmp_path / name / file).write_text(name)
    more = (house(tmp_path, "one", into="more"), house(tmp_path, "two", into="more"))
    assemble_context(build_in(tmp_path, wheelhouses=(house(tmp_path), *more)))
    assert sorted(path.name for path in (tmp_path / "context/more").iterdir()) == ["b-1.whl", "c-1.whl"]


def test_a_certificate_that_cannot_be_read_is_said_so(tmp_path: Path) -> None:
    (tmp_path / "wheels").mkdir()
    with pytest.raises(ImageError, match=r"cannot read the certificate .*absent\.pem"):
        assemble_context(build_in(tmp_path, certificate=str(tmp_path / "absent.pem")))


def test_a_failed_build_keeps_the_end_of_its_output_and_leaves_no_context(tmp_path: Path) -> None:
    failing = python("print('last words'); raise SystemExit(7)")
    lines: list[str] = []
    with pytest.raises(CommandFailed) as caught:
        build_image(build_in(tmp_path, command=failing), lambda title, line: lines.append(line))
    assert caught.value.status == 7
    assert "last words" in str(caught.value)
    assert "last words" in lines
    assert not (tmp_path / "context").exists()


_SOLVE = "ERROR: failed to solve: d:1: failed to resolve source metadata for docker.io/library/d:1: "
_GET = 'Get "https://registry.corp/v2/": dial tcp: lookup registry.corp: no such host'


@pytest.mark.parametrize(
    ("text", "base", "fix"),
    [
        ("pull access denied for debian, repository does not exist", "", "make base"),
        ("standard_init_linux.go:228: exec user process caused: exec format error", "", "qemu-user-static"),
        (f"{_SOLVE}dial tcp: i/o timeout", "", "make base"),
        # `make base` does not create these.
        (f"{_SOLVE}not found", "registry.corp/d:1", "docker pull registry.corp/d:1  # prints why"),
        (_GET, "registry.corp/d:1", "docker pull registry.corp/d:1"),
        ("manifest for d:1 not found: manifest unknown", "d:1", "docker pull d:1"),
        ("no space left on device", "", ""),
        ("Reading the package registry\nE: No space left on device", "", ""),
    ],
)
def test_the_fix_of_a_failed_build(text: str, base: str, fix: str, tmp_path: Path) -> None:
    failing = python(f"print({text!r}); raise SystemExit(1)")
    if base:
        failing = command(*failing.argv, "--build-arg", f"BASE_IMAGE={base}")
    with pytest.raises(CommandFailed) as caught:
        build_image(build_in(tmp_path, command=failing), lambda title, line: None)
    assert fix in caught.value.fix
    assert bool(caught.value.fix) == bool(fix)


def test_builds_of_one_kind_follow_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    events: list[str] = []
    said = threading.Event()

    def notify(line: str) -> None:
        events.append(line)
        said.set()

    def second() -> None:
        with exclusive_build("cpu", notify):
            events.append("second")

    thread = threading.Thread(target=second)
    with exclusive_build("cpu", events.append), exclusive_build("gpu", events.append):
        thread.start()
        assert said.wait(PATIENCE_S)
        events.append("first")
    thread.join(PATIENCE_S)
    assert events == ["waiting for another image build (cpu) on your machine", "first", "second"]


def test_a_build_makes_its_plan_while_no_other_build_changes_the_wheelhouses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Any
) -> None:
    """Both ways to build; a dry run changes nothing and does not wait."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    calls: list[tuple[str, bool]] = []

    def is_held(kind: str) -> bool:
        with (tmp_path / f"toolkit/build-{kind}.lock").open("a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
            return False

    def make(kind: str) -> ImageBuild:
        (tmp_path / "toolkit").mkdir(exist_ok=True)
        calls.append((f"plan {kind}", is_held(kind)))
        return build_in(tmp_path, flavor=kind)

    def build(build: ImageBuild, notify: object) -> int:
        calls.append((f"build {build.flavor}", is_held(build.flavor)))
        return 1

    for module in ("toolkit.cli.image", "toolkit.api.image"):
        monkeypatch.setattr(f"{module}.make_build", lambda recipe, *rest: make(recipe.kind))
        monkeypatch.setattr(f"{module}.build_image", build)
    monkeypatch.setattr("toolkit.cli.image.make_onto", lambda *rest: make("onto"))
    assert run("image", "build", "--flavor", "cpu", "--dry-run")[0] == 0
    assert calls == [("plan cpu", False)]
    calls.clear()
    assert run("image", "build", "--flavor", "cpu")[0] == 0
    assert run("image", "build", "--cuda", "12")[0] == 0
    assert run("image", "build", "--onto", "debian:12")[0] == 0
    part = ImagePart(SimpleNamespace(inventory=SimpleNamespace(image="t:1")))  # type: ignore[arg-type]
    part.build("cpu")
    kinds = ("cpu", "gpu-cuda12", "onto", "cpu")
    assert calls == [(f"{what} {kind}", True) for kind in kinds for what in ("plan", "build")]


def test_a_cache_that_cannot_be_used_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    (tmp_path / "file").touch()
    cache = tmp_path / "file" / "toolkit"
    assert wheelhouse_files(str(cache / "wheels/x")) == {}
    with exclusive_build("cpu", pytest.fail), pytest.raises(ImageError) as caught:
        build_image(build_in(cache), quiet)
    assert caught.value.what == f"cannot use the build cache {cache / 'wheels'}: Not a directory"
    assert caught.value.fix == (
        "export XDG_CACHE_HOME=FOLDER  # FOLDER: a writable folder with free space; "
        f"or remove files from {cache}"
    )


@pytest.mark.parametrize("call", ["write_text", "write_bytes", "mkdir"])
def test_a_full_disk_is_reported(tmp_path: Path, call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object, **options: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "wheels").mkdir()
    (tmp_path / "ca.pem").touch()
    monkeypatch.setattr(Path, call, full)
    with pytest.raises(ImageError, match=rf"build cache {tmp_path}/toolkit: No space left on device"):
        build_image(build_in(tmp_path, certificate=str(tmp_path / "ca.pem")), quiet)


def test_a_cache_that_cannot_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(path: Path) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(Path, "iterdir", denied)
    with pytest.raises(ImageError, match=rf"build cache {tmp_path}: Permission denied"):
        wheelhouse_files(str(tmp_path))


def test_a_line_without_end_takes_no_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "own"))
    monkeypatch.setattr("toolkit.image.build.built_image", lambda tag: (f"sha256:{'a' * 64}", 1))
    lines: list[str] = []
    endless = command("sh", "-c", "head -c 300000 /dev/zero | tr '\\0' x")
    build_image(build_in(tmp_path, command=endless), lambda title, line: lines.append(line))
    assert max(map(len, lines)) == 1 << 16


def test_a_program_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(MissingTool, match="no-such-program is not installed on your machine"):
        build_image(build_in(tmp_path, command=command("no-such-program")), quiet)


def test_an_image_over_its_limit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "own"))
    monkeypatch.setattr("toolkit.image.build.built_image", lambda tag: (f"sha256:{'a' * 64}", 2_000_000))
    assert build_image(build_in(tmp_path), quiet) == 2_000_000
    with pytest.raises(ImageError, match=r"2 MB, but the limit for an image of flavor \w+ is 1 MB"):
        build_image(build_in(tmp_path, limit_bytes=1_000_000), quiet)
    assert built_images() == (f"sha256:{'a' * 64}",)


def test_images_that_were_built_here_are_remembered(tmp_path: Path) -> None:
    record = tmp_path / "cache/built.json"
    assert built_images(record) == ()
    ids = [f"sha256:{number:064x}" for number in range(120)]
    for each in (*ids, ids[50]):
        note_built(each, record)
    assert built_images(record) == (*ids[20:50], *ids[51:], ids[50])
    assert [path.name for path in record.parent.iterdir()] == ["built.json"]
    for text in ("", "{}", "[1]", '["sha256:x"]', "[" * 9999, "x" * 99999):
        record.write_text(text)
        assert built_images(record) == ()


def test_the_cache_follows_the_environment() -> None:
    assert default_cache({"XDG_CACHE_HOME": "/x"}) == "/x/toolkit"


def test_the_sources_of_the_checkout_are_found() -> None:
    names = ("Dockerfile.cpu", "Dockerfile.gpu", *CONTEXT_FILES)
    assert set(read_sources(source_folder(), names)) == set(names)
