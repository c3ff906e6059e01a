"""Image builds on this machine: wheelhouse, build context, docker, and the record of built images."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import zipfile
import zlib
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

from toolkit.core.command import Command, quoted
from toolkit.core.files import locked
from toolkit.core.image import image_id
from toolkit.core.printable import counted
from toolkit.errors import CommandFailed, ImageError, MissingTool, quotation
from toolkit.image.build_values import CONTEXT_FOLDERS, Fetch, ImageBuild, Locked, without_logins
from toolkit.image.lock import LOCK_FILE, expected_digests
from toolkit.image.wheelhouse import Pin, Target, wheel_platforms
from toolkit.remote.local_image import default_cache, note_built

# Called with a title when a stage of the build begins, then with each line of its output.
Notify = Callable[[str, str], None]

# Number of output lines of a failed program that an error keeps.
_TAIL = 40
_LONGEST = 1 << 16  # bytes of a line; a longer line counts as several
# If pip cannot load the page of a package, pip prints the reason as a warning only, then reports that the
# package has no versions. The error about a file differs between pip versions.
_RETRIED, _NO_VERSIONS = "after connection broken by", "(from versions: none)"
_NO_CONNECTION = re.compile(
    "Max retries exceeded|Read timed out|^error: (connection|proxy|ssl)-", re.MULTILINE
)
_NO_EXTRA = re.compile(r"([\w.-]+) \S+ does not provide the extra '([^']+)'")
# Options in a requirements file: package sources, a folder or page of them, and further files.
_SOURCE = re.compile(r"(?<!\S)(?:-i|--index-url|--extra-index-url|--no-index|--trusted-host|-f|--find-links)")
_VALUE = r"""[ =]*("[^"]*"|'[^']*'|\S+)"""
# A line of `pip config list`, for example: global.find-links='https://USER:PASSWORD@SERVER/wheels'
_CONFIGURED_SOURCE = re.compile(r"^\S+\.(?:(?:extra-)?index-url|find-links)=")
_FIND_LINKS = re.compile(rf"(?<!\S)(?:-f|--find-links){_VALUE}")
_INCLUDED = re.compile(rf"(?<!\S)(?:-r|--requirement|-c|--constraint){_VALUE}")
_LOGIN_URL = re.compile(r"""(https?://)([^\s/"']+@)([^\s#"']+)""")
_COMMENT = re.compile(r"(^|\s)#.*")
# The engine cannot load the base image: BuildKit's, the legacy builder's and the registry's words.
_NO_BASE = re.compile(
    "failed to resolve source metadata|pull access denied|manifest unknown|toomanyrequests"
    r"""|\b(Get|Head) "?https?://\S+/v2/"""
)


def source_folder() -> Path:
    """Return the folder with the Dockerfiles: in the installed package, otherwise in the checkout.

    Raises:
        ImageError: neither of them contains the Dockerfiles.
    """
    package = Path(__file__).resolve().parent.parent
    for folder in (package / "_data", package.parent):
        if (folder / "Dockerfile.cpu").is_file():
            return folder
    raise ImageError(
        f"Dockerfile.cpu was not found in {package / '_data'} or {package.parent}",
        "reinstall toolkit, or run it from a checkout",
    )


def read_sources(folder: Path, names: Iterable[str]) -> dict[str, str]:
    """Return the text of the named files below a folder, by name."""
    return {name: (folder / name).read_text(encoding="utf-8") for name in names}


def exclusive_build(kind: str, notify: Callable[[str], None]) -> contextlib.AbstractContextManager[None]:
    """Wait until no other process builds an image of this kind, and let other processes wait meanwhile.

    Builds of one kind share wheelhouses and the context folder. The plan of a build depends on the content of
    the wheelhouses, so make the plan inside as well.

    Args:
        kind: see ``ImageRecipe.kind``; ``onto`` for a build on another image.
        notify: called with a line if another build is running.
    """
    line = f"waiting for another image build ({kind}) on your machine"
    file = Path(default_cache(os.environ)) / f"build-{kind}.lock"
    return locked(file, lambda: notify(line), math.inf)  # a build can take hours on a slow connection


@contextlib.contextmanager
def _using_cache() -> Iterator[None]:
    """Report an error of the file system, such as a full disk, as an error of the build."""
    try:
        yield
    except OSError as error:
        cache = default_cache(os.environ)
        raise ImageError(
            f"cannot use the build cache {error.filename or cache}: {error.strerror or error}",
            "export XDG_CACHE_HOME=FOLDER  # FOLDER: a writable folder with free space; or remove files from "
            + cache,
        ) from error


@_using_cache()
def wheelhouse_files(folder: str, current: Collection[Locked] = ()) -> dict[str, bool]:
    """Return the packages in a wheelhouse by file name; False for a damaged or outdated package.

    Args:
        current: files with which the files of the same packages are compared, by their digests.
    """
    if not Path(folder).is_dir():
        return {}
    files = sorted(path for path in Path(folder).iterdir() if path.is_file())
    return {path.name: _intact(path) and _expected(path, current) for path in files}


def build_image(build: ImageBuild, notify: Notify) -> int:
    """Run all steps of the build and return the image's size in bytes.

    Raises:
        MissingTool: this Python has no pip, or this machine has no docker.
        ImageError: a package cannot be fetched or its file is altered, the cache cannot be used, or the image
            exceeds its limit.
        CommandFailed: docker build exited with an error.
    """
    fill_wheelhouse(build, notify)
    try:
        assemble_context(build)
        notify("build", build.command.line())
        status, tail = _stream(build.command, lambda line: notify("build", line))
        if status != 0:
            text = "\n".join(tail)
            raise CommandFailed(build.command.line(), status, text, fix=_fix_of(build, text))
    finally:
        shutil.rmtree(build.context, ignore_errors=True)
    image, size = built_image(build.tag)
    with contextlib.suppress(OSError):  # without the record, a transfer exports the image, which is slower
        note_built(image)
    if build.limit_bytes and size > build.limit_bytes:
        raise ImageError(
            f"{build.tag} has {size / 1e6:.0f} MB, but the limit for an image of flavor "
            f"{build.flavor} is {build.limit_bytes / 1e6:.0f} MB",
            f"docker history {build.tag}  # prints the size of each layer",
        )
    return size


def _fix_of(build: ImageBuild, output: str) -> str:
    """Return the fix for a failed ``docker build``; empty if the output does not have a known reason."""
    if _NO_BASE.search(output):
        given = [word for word in map(str, build.command.argv) if word.startswith("BASE_IMAGE=")]
        if given:
            base = quoted(given[-1].partition("=")[2])
            return (
                f"docker pull {base}  # prints why the pull fails; a private registry requires docker login"
            )
        return (
            "make base  # run in a toolkit checkout; if the pull fails, the command creates the base image "
            "with debootstrap, which requires root"
        )
    if "exec format error" in output:
        return (
            "install qemu-user-static and binfmt-support on your machine"
            "  # or build on a machine with the architecture of the base image"
        )
    return ""


@contextlib.contextmanager
def stub_wheels(pins: Iterable[Pin], held: Iterable[Pin], target: Target) -> Iterator[tuple[str, str]]:
    """Yield a folder with a wheel of each package, without files and dependencies, and a constraints file.

    Both are removed later.

    Of two wheels of one version, pip prefers the wheel with the more specific tag: that of the stubs is best.
    """
    tag = f"{target.abi}-{target.abi}-{wheel_platforms(target.arch)[0]}"
    with tempfile.TemporaryDirectory(prefix="toolkit-") as folder:
        for pin in pins:
            name = f"{pin.name}-{pin.version}"
            about = f"Metadata-Version: 2.1\nName: {pin.name}\nVersion: {pin.version}\n"
            with zipfile.ZipFile(Path(folder, f"{name}-{tag}.whl"), "w") as wheel:
                wheel.writestr(f"{name}.dist-info/METADATA", about)
                wheel.writestr(f"{name}.dist-info/WHEEL", f"Wheel-Version: 1.0\nTag: {tag}\n")
        constraints = Path(folder, "constraints.txt")
        constraints.write_text("".join(f"{pin.line}\n" for pin in held), encoding="utf-8")
        yield folder, str(constraints)


def resolve(command: Command, requirements: str, stubs: Collection[Pin] = ()) -> str:
    """Return pip's installation report for a user's requirements.

    Args:
        stubs: packages of ``stub_wheels``, whose extras pip does not know.

    Raises:
        MissingTool: this Python has no pip.
        ImageError: pip finds no compatible versions, a package needs an extra of a stub, or the connection
            to a package index failed.
    """
    _require_pip()
    argv = [str(token) for token in command.argv]
    done = subprocess.run(argv, input=command.stdin, capture_output=True, check=False)
    output = without_logins(done.stderr.decode(errors="replace"))
    if done.returncode == 0:
        keys = {pin.key for pin in stubs}
        # The report of pip 23.2 contains only the extras that the user requires.
        refused = {f"{name}[{extra}]" for name, extra in _NO_EXTRA.findall(output) if name in keys}
        if refused:
            raise ImageError(
                f"--pip cannot add the optional dependencies of {', '.join(sorted(refused))}",
                "replace the requirement with the packages that the extra in the brackets adds",
            )
        return done.stdout.decode(errors="replace")
    lines = [line for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if not line.lstrip().startswith("WARNING")] or lines
    retried, text = [line.strip() for line in lines if _RETRIED in line], "\n".join(errors)
    if _NO_CONNECTION.search(text) or (retried and _NO_VERSIONS in text):
        detail = quotation(retried[-1:] or errors[-8:])
        raise ImageError(
            f"pip cannot resolve {requirements}, because the connection to a package index failed{detail}",
            "python3 -m pip config list  # check index, proxy, certificate, and the variables "
            "https_proxy and no_proxy",
        )
    detail = quotation(errors[-8:])
    raise ImageError(
        f"pip cannot resolve {requirements} for the image{detail}",
        f"change {requirements}, or the version of a package in the image, for example with "
        "--build-arg NUMPY_VERSION=…",
    )


def source_options(file: Path) -> Iterator[str]:
    """Yield the lines with package sources of a requirements file and of the files that it includes.

    The path of a folder becomes absolute.
    """
    for folder, line in _lines(file):
        if line.startswith("-") and _SOURCE.search(line):
            yield _FIND_LINKS.sub(partial(_absolute, folder), line)


def with_logins(files: Iterable[Locked], requirements: Path) -> tuple[Locked, ...]:
    """Return the files with the logins that the requirements have for their URLs: pip reports none.

    The variables and configuration files of pip count too: pip does not use a login in PIP_FIND_LINKS for the
    URL of a file. The login of an index or page is used for all files of its server, unless the server has
    several logins.
    """
    logins: dict[str, set[str]] = {}
    listed = subprocess.run([sys.executable, "-m", "pip", "config", "list"], capture_output=True, check=False)
    settings = listed.stdout.decode(errors="replace").splitlines()
    configured = (f"-f {line}" for line in settings if _CONFIGURED_SOURCE.match(line))
    for line in (*(line for _, line in _lines(requirements)), *configured):
        for scheme, login, rest in _LOGIN_URL.findall(line):
            part = f"{rest.partition('/')[0]}/" if line.startswith("-") else rest
            logins.setdefault(scheme + part, set()).add(login)

    def url(given: str) -> str:
        scheme, _, rest = given.partition("://")
        part = max((each for each in logins if given.startswith(each)), key=len, default="")
        login, *others = logins.get(part, {""})
        return given if others else f"{scheme}://{login}{rest}"

    return tuple(replace(each, url=each.url and url(each.url)) for each in files)


def has_hashes(file: Path) -> bool:
    """Return whether pip would require a hash of each package of this requirements file."""
    return any(re.search(r"(?<!\S)--(hash\b|require-hashes)", line) for _, line in _lines(file))


def _absolute(folder: Path, option: re.Match[str]) -> str:
    path = folder / option[1].strip("\"'")
    return f"--find-links {quoted(str(path.resolve()))}" if path.exists() else option[0]


def _lines(file: Path, outer: tuple[Path, ...] = ()) -> Iterator[tuple[Path, str]]:
    """Yield the lines of a requirements file and of the files that it includes, with the folder of each."""
    file = Path(os.path.normpath(file))
    if file in outer:
        return  # pip refuses a file that includes itself
    text = (
        file.read_text(encoding="utf-8-sig", errors="replace").replace("\\\n", "") if file.is_file() else ""
    )
    for raw in text.splitlines():
        line = _COMMENT.sub("", raw).strip()
        if line.startswith("-") and (match := _INCLUDED.search(line)):
            yield from _lines(file.parent / match[1].strip("\"'"), (*outer, file))
        else:
            yield file.parent, line


def _require_pip() -> None:
    if importlib.util.find_spec("pip") is None:
        raise MissingTool(
            "toolkit fetches the wheels with pip, but the Python that runs toolkit has no pip",
            f"{quoted(sys.executable)} -m ensurepip"
            "  # or recreate the virtual environment with python3 -m venv",
        )


def fill_wheelhouse(build: ImageBuild, notify: Notify) -> None:
    """Fetch the missing packages of the wheelhouses, and remove those that are no longer needed.

    Raises:
        MissingTool: this Python has no pip.
        ImageError: a package cannot be fetched, or a file is not the one that the lock has.
    """
    with _using_cache():
        for house in build.wheelhouses:
            Path(house.folder).mkdir(parents=True, exist_ok=True)
            for name in house.discard:
                Path(house.folder, name).unlink(missing_ok=True)
    # Before pip runs, because it imports setuptools from a wheelhouse.
    checked = refuse_altered(build, frozenset())
    if build.fetches:
        _require_pip()
    for house in build.wheelhouses:
        try:
            for fetch in house.fetches:
                _fetch(fetch, notify)
        finally:
            shutil.rmtree(Path(house.folder, "build-tools"), ignore_errors=True)
    refuse_altered(build, checked)


@_using_cache()
def refuse_altered(build: ImageBuild, checked: frozenset[Path]) -> frozenset[Path]:
    """Compare the files of the wheelhouses with the lock and with pip's report, and return the files.

    Args:
        checked: files that were compared before.

    Raises:
        ImageError: the SHA-256 of a file is not one that the lock or the report has for its package.
    """
    files = {path: house for house in build.wheelhouses for path in sorted(Path(house.folder).glob("*.*"))}
    new = {path: house for path, house in files.items() if path not in checked and path.is_file()}
    if wrong := [path for path, house in new.items() if not _expected(path, house.locked)]:
        names = "".join(f"\n    {path}" for path in wrong)
        raise ImageError(
            f"the SHA-256 of {counted(len(wrong), 'package file')} differs from the value in {LOCK_FILE}, or "
            f"from the value that pip reported for --pip:{names}",
            f"rm {quoted(*map(str, wrong))}  # the next build downloads the packages again",
        )
    return frozenset(files)


@_using_cache()
def assemble_context(build: ImageBuild) -> None:
    """Recreate the context folder: the files of the build, the wheels, and the certificate if any."""
    context = Path(build.context)
    shutil.rmtree(context, ignore_errors=True)
    for name in CONTEXT_FOLDERS:
        (context / name).mkdir(parents=True)
    for name, text in build.files:
        path = context / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    for house in build.wheelhouses:
        for path in Path(house.folder).iterdir():
            there = context / house.into / path.name
            if path.is_file() and not there.exists():  # two wheelhouses can contain the same file
                _link(path, there)
    if build.certificate:
        try:
            certificate = Path(build.certificate).read_bytes()
        except OSError as error:
            raise ImageError(
                f"cannot read the certificate {build.certificate}: {error.strerror}",
                "set --certificate to a readable file with certificates in PEM format",
            ) from error
        (context / "certs" / "site.crt").write_bytes(certificate)


def built_image(reference: str) -> tuple[str, int]:
    """Return the Id of an image and its size in bytes, as the local engine reports them."""
    command = Command(("docker", "image", "inspect", "--format", "{{.Id}} {{.Size}}", reference))
    lines: list[str] = []
    status, tail = _stream(command, lines.append)
    if status != 0:
        raise CommandFailed(command.line(), status, "\n".join(tail))
    name, _, size = lines[-1].partition(" ")
    return image_id(name), int(size)


def _fetch(fetch: Fetch, notify: Notify) -> None:
    notify(fetch.title, "")
    tail: tuple[str, ...] = ()
    for command in fetch.alternatives:
        status, tail = _stream(command, lambda line: notify(fetch.title, without_logins(line)))
        if status == 0:
            return
    # pip's errors name the missing or altered package; the warnings before them do not help.
    first = next((number for number, line in enumerate(tail) if line.startswith("ERROR")), None)
    shown = tail[-4:] if first is None else tail[first : first + 6]
    detail = quotation(map(without_logins, shown))
    raise ImageError(fetch.failure + detail, fetch.fix)


def _stream(command: Command, sink: Callable[[str], None]) -> tuple[int, tuple[str, ...]]:
    argv = [str(token) for token in command.argv]
    tail: deque[str] = deque(maxlen=_TAIL)
    try:
        # start_new_session: one signal then also reaches pip's compilers and docker's plugins.
        process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE if command.stdin is not None else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except FileNotFoundError as error:
        raise MissingTool(
            f"{argv[0]} is not installed on your machine", f"install {argv[0]} and put it on PATH"
        ) from error
    output = process.stdout
    assert output is not None
    try:
        if process.stdin is not None and command.stdin is not None:
            process.stdin.write(command.stdin)
            process.stdin.close()
        for raw in iter(lambda: output.readline(_LONGEST), b""):
            line = raw.decode(errors="replace").rstrip()
            tail.append(line)
            sink(line)
        return process.wait(), tuple(tail)
    except BaseException:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait()
        raise


def _expected(path: Path, locked: Collection[Locked]) -> bool:
    digests = expected_digests(path.name, locked)
    return not digests or _digest(path) in digests


def _digest(path: Path) -> str:
    found = hashlib.sha256()
    with path.open("rb") as file:
        while part := file.read(1 << 20):
            found.update(part)
    return found.hexdigest()


def _intact(path: Path) -> bool:
    try:
        if path.suffix == ".whl":
            return zipfile.is_zipfile(path)
        with tarfile.open(path) as archive:
            return bool(archive.getmembers())
    except (OSError, EOFError, tarfile.TarError, zlib.error):
        return False


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
