"""Image builds on this machine: wheelhouse, build context, docker; and the record of what was built here."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import tarfile
import zipfile
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Annotated

from toolkit.core.command import Command
from toolkit.core.image import image_id
from toolkit.errors import CommandFailed, ImageError, MissingTool
from toolkit.image.build_values import CONTEXT_FOLDERS, Fetch, ImageBuild
from toolkit.protocol.decode import DecodeError, Text, decode_json

# Called with a title when a part of the build begins, then with each line of its output.
Notify = Callable[[str, str], None]

# How much of a failed program's output an error keeps.
_TAIL = 40
_MOST_BUILT = 100
_MOST_RECORD_BYTES = 1 << 16
_Id = Annotated[str, Text(71, r"sha256:[0-9a-f]{64}")]


def source_folder() -> Path:
    """Return the folder with the Dockerfiles: inside an installed package, else the checkout.

    Raises:
        ImageError: neither has them.
    """
    package = Path(__file__).resolve().parent.parent
    for folder in (package / "_data", package.parent):
        if (folder / "Dockerfile.cpu").is_file():
            return folder
    raise ImageError(
        f"no Dockerfile.cpu in {package / '_data'} or {package.parent}",
        "install the toolkit again, or run it from a checkout",
    )


def read_sources(folder: Path, names: Iterable[str]) -> dict[str, str]:
    """Return the text of files below a folder, by the names given."""
    return {name: (folder / name).read_text(encoding="utf-8") for name in names}


def default_cache(environ: Mapping[str, str]) -> str:
    """Return the folder in which wheels, and the record of what was built, are kept between builds."""
    base = environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return str(Path(base).absolute() / "toolkit")


def wheelhouse_files(folder: str) -> dict[str, bool]:
    """Return the packages in a wheelhouse by file name; False for one that is cut off or damaged."""
    if not Path(folder).is_dir():
        return {}
    files = sorted(path for path in Path(folder).iterdir() if path.is_file())
    return {path.name: _intact(path) for path in files}


def build_image(build: ImageBuild, notify: Notify) -> int:
    """Do everything that the build says and return the image's size in bytes.

    Raises:
        MissingTool: no pip in this Python, or no docker on this machine.
        ImageError: a package cannot be fetched, or the image is larger than its limit.
        CommandFailed: docker build ended with an error.
    """
    fill_wheelhouse(build, notify)
    try:
        assemble_context(build)
        notify("build", build.command.line())
        status, tail = _stream(build.command, lambda line: notify("build", line))
        if status != 0:
            text = "\n".join(tail)
            no_base = "registry" in text or "pull access denied" in text
            fix = "no registry gives the base image; make base makes it here" if no_base else ""
            raise CommandFailed(build.command.line(), status, text, fix=fix)
    finally:
        shutil.rmtree(build.context, ignore_errors=True)
    image, size = built_image(build.tag)
    with contextlib.suppress(OSError):  # without the record its layers are exported, which takes longer
        note_built(image)
    if build.limit_bytes and size > build.limit_bytes:
        raise ImageError(
            f"{build.tag} has {size / 1e6:.0f} MB, more than the {build.limit_bytes / 1e6:.0f} MB "
            f"that an image of flavour {build.flavour} may have",
            f"see what grew with: docker history {build.tag}",
        )
    return size


def resolve(asked: Command, requirements: str) -> str:
    """Return pip's installation report for a person's requirements.

    Raises:
        ImageError: pip finds no versions that go together.
    """
    argv = [str(token) for token in asked.argv]
    done = subprocess.run(argv, input=asked.stdin, capture_output=True, check=False)
    if done.returncode == 0:
        return done.stdout.decode(errors="replace")
    said = [line for line in done.stderr.decode(errors="replace").splitlines() if line.strip()]
    errors = [line for line in said if not line.startswith("WARNING")] or said
    detail = "".join(f"\n    {line}" for line in errors[-8:])
    raise ImageError(
        f"pip finds no versions for {requirements} that go with what the image has{detail}",
        "other versions there; or another one of the image: --build-arg NUMPY_VERSION=…",
    )


def fill_wheelhouse(build: ImageBuild, notify: Notify) -> None:
    """Bring every package that the wheelhouses lack, and remove what they no longer need."""
    for house in build.wheelhouses:
        Path(house.folder).mkdir(parents=True, exist_ok=True)
        for name in house.discard:
            Path(house.folder, name).unlink(missing_ok=True)
    if build.fetches and importlib.util.find_spec("pip") is None:
        raise MissingTool(
            "the wheels of the image are fetched with pip, and this Python has none",
            "python3 -m ensurepip, or make the virtual environment anew with: python3 -m venv",
        )
    for house in build.wheelhouses:
        try:
            for fetch in house.fetches:
                _fetch(fetch, notify)
        finally:
            shutil.rmtree(Path(house.folder, "build-tools"), ignore_errors=True)


def assemble_context(build: ImageBuild) -> None:
    """Make the context folder anew: the files of the build, the wheels, and the certificate if any."""
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
            if path.is_file() and not there.exists():  # two may want the same one
                _link(path, there)
    if build.certificate:
        try:
            shutil.copyfile(build.certificate, context / "certs" / "site.crt")
        except OSError as error:
            raise ImageError(
                f"the certificate {build.certificate} cannot be read: {error.strerror}",
                "name a file with certificates in PEM form",
            ) from error


def built_image(reference: str) -> tuple[str, int]:
    """Return Id and size in bytes of an image as this machine's engine reports them."""
    command = Command(("docker", "image", "inspect", "--format", "{{.Id}} {{.Size}}", reference))
    lines: list[str] = []
    status, tail = _stream(command, lines.append)
    if status != 0:
        raise CommandFailed(command.line(), status, "\n".join(tail))
    name, _, size = lines[-1].partition(" ")
    return image_id(name), int(size)


def built_images(file: Path | None = None) -> tuple[str, ...]:
    """Return the Ids, the newest last; none if the record cannot be read.

    Args:
        file: the record; the user's own if absent.
    """
    with contextlib.suppress(OSError, DecodeError), (file or _built_record()).open("rb") as source:
        return decode_json(tuple[_Id, ...], source.read(_MOST_RECORD_BYTES))
    return ()


def note_built(image: str, file: Path | None = None) -> None:
    """Add an image to the record.

    Raises:
        OSError: the record cannot be written.
    """
    file = file or _built_record()
    known = [each for each in built_images(file) if each != image]
    file.parent.mkdir(parents=True, exist_ok=True)
    new = file.with_name(f".{file.name}.{os.getpid()}")
    new.write_text(json.dumps([*known, image][-_MOST_BUILT:]))
    new.chmod(0o600)
    new.replace(file)


def _fetch(fetch: Fetch, notify: Notify) -> None:
    notify(fetch.title, "")
    tail: tuple[str, ...] = ()
    for command in fetch.alternatives:
        status, tail = _stream(command, lambda line: notify(fetch.title, line))
        if status == 0:
            return
    # pip's own last word says what it looked for; its warnings before that do not help.
    errors = [line for line in tail if line.startswith("ERROR")] or list(tail)
    detail = "".join(f"\n    {line}" for line in errors[-4:])
    raise ImageError(fetch.failure + detail, fetch.fix)


def _stream(command: Command, sink: Callable[[str], None]) -> tuple[int, tuple[str, ...]]:
    argv = [str(token) for token in command.argv]
    tail: deque[str] = deque(maxlen=_TAIL)
    try:
        # start_new_session: one signal then reaches the compilers of pip and the docker plugins too.
        process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE if command.stdin is not None else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except FileNotFoundError as error:
        raise MissingTool(
            f"{argv[0]} is not on this machine", f"install {argv[0]} and put it on PATH"
        ) from error
    assert process.stdout is not None
    try:
        if process.stdin is not None and command.stdin is not None:
            process.stdin.write(command.stdin)
            process.stdin.close()
        for raw in process.stdout:
            line = raw.decode(errors="replace").rstrip()
            tail.append(line)
            sink(line)
        return process.wait(), tuple(tail)
    except BaseException:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait()
        raise


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


def _built_record() -> Path:
    return Path(default_cache(os.environ)) / "built-images.json"
