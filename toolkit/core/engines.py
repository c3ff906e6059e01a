"""Container engines of hosts: commands in docker's words for each engine, and answers in docker's words."""

from __future__ import annotations

import functools
import re
from dataclasses import replace
from datetime import datetime

from toolkit.core.command import Command, Token
from toolkit.protocol.decode import decode, load_json
from toolkit.protocol.engine import EngineInfo, PodmanInfo, PodmanSecurity

DOCKER, PODMAN = "docker", "podman"
ENGINES = (DOCKER, PODMAN)
# If NVIDIA's runtime is the default one, an image that requests all GPUs gets them without this variable.
# If the driver is broken, such a container does not start.
NONE_VISIBLE = ("NVIDIA_VISIBLE_DEVICES", "void")
# With these an engine's `run` or `exec` ends when the engine could not start the command. The runtime or its
# shim dies under it now and then, once in some hundred starts on a busy machine; the next start works.
ENGINE_FAILED = (125, 126, 127, 128, 255)

# Subcommands that the scripts of this package call; podman has all of them under the same names.
_VERBS = "container|exec|image|images|info|inspect|load|logs|manifest|ps|pull|rm|rmi|run|tag|unpause|version"
# In a script: docker as a command's first word, or as the name of a function that replaces it.
_CALL = re.compile(rf"(?<![\w./@:-])docker(?= (?:{_VERBS})\b|\(\))")
_VERB = re.compile(_VERBS)


def translate_engine(command: Command, engine: str) -> Command:
    """Return a command translated for the engine of a host; a translated command is returned unchanged.

    Only scripts of this package and the first word of a call are translated. Arguments from the user are not:
    everything behind the first call belongs to that call.
    """
    if engine == DOCKER or command.translated:
        return command
    argv: list[Token] = list(command.argv)
    for index, token in enumerate(argv):
        if isinstance(token, str) and index and argv[index - 1] == "-c":
            argv[index] = translate_engine_text(token, engine)
        elif token == DOCKER and _VERB.fullmatch(str(argv[index + 1 : index + 2] and argv[index + 1])):
            argv[index] = engine
            break
    return Command(tuple(argv), command.stdin, translated=True)


def translate_engine_text(text: str, engine: str) -> str:
    """Return a script of this package, translated for the engine of a host."""
    return text if engine == DOCKER else _CALL.sub(engine, text)


# Podman reads the CDI specifications in these folders (libpod's default of `cdi_spec_dirs`).
_CDI_FOLDERS = ("/etc/cdi", "/var/run/cdi")


@functools.lru_cache(maxsize=1024)  # about twelve checks of each host call it
def parse_info(text: str) -> EngineInfo | None:
    """Return the object that ``info --format '{{json .}}'`` printed; None when there is none.

    The object of Podman is converted to docker's form, for the fields that toolkit uses.

    Raises:
        DecodeError: the object is not one of an engine.
    """
    for line in text.split("\n"):
        if line.startswith("{"):
            info = load_json(line)
            if "store" in info and "host" in info:
                return _as_docker(decode(PodmanInfo, info))
            return replace(decode(EngineInfo, info), engine=DOCKER)
    return None


def seconds_of(text: str) -> float:
    """Return the seconds of an engine's time: up to nine decimals, UTC or an offset; the year 1 means never.

    Docker prints UTC. Podman prints the time of the host's time zone, with its offset. A time in the year
    9999 counts as invalid: in UTC it can be in the next year, which no date has.
    """
    found = re.fullmatch(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(\.\d+)?(Z|[+-]\d\d:\d\d)", text)
    if not found or not "1971" < found[1] < "9999":
        return 0.0
    try:
        moment = datetime.fromisoformat(f"{found[1]}{'+00:00' if found[3] == 'Z' else found[3]}")
    except ValueError:  # not a valid date
        return 0.0
    return moment.timestamp() + float(found[2] or 0)


def _as_docker(info: PodmanInfo) -> EngineInfo:
    host, security = info.host, info.host.security or PodmanSecurity()
    enabled = (("rootless", security.rootless_enabled), ("selinux", security.selinux_enabled))
    options = [f"name={name}" for name, is_on in enabled if is_on]
    options += ["name=rootless"] if security.rootless else []
    return EngineInfo(
        engine=PODMAN,
        version=info.version.version if info.version else "",
        driver=info.store.driver,
        driver_status=(),
        root=info.store.root,
        security_options=tuple(options),
        default_runtime=host.runtime.name if host.runtime else "",
        logging_driver=host.log_driver,
        cgroup_driver=host.cgroup_manager,
        cgroup_version=host.cgroup_version.removeprefix("v"),
        name=host.hostname,
        cdi_folders=_CDI_FOLDERS,
    )
