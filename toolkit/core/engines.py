"""The engines that hosts may have: commands are written in docker's words, and said in the host's own."""

from __future__ import annotations

import re

from toolkit.core.command import Command, Token

DOCKER, PODMAN = "docker", "podman"
ENGINES = (DOCKER, PODMAN)
# With these an engine's `run` or `exec` ends when the engine could not start the command. The runtime or its
# shim dies under it now and then, once in some hundred starts on a busy machine; the next start works.
ENGINE_FAILED = (125, 126, 127, 128, 255)

# What the scripts of this package call; podman knows them all under the same names.
_VERBS = "container|exec|image|images|info|inspect|load|logs|manifest|ps|pull|rm|rmi|run|tag|version"
# In a script: docker as a command's first word, or as the name of a function that stands for it.
_CALL = re.compile(rf"(?<![\w./@:-])docker(?= (?:{_VERBS})\b|\(\))")
_VERB = re.compile(_VERBS)


def spoken(command: Command, engine: str) -> Command:
    """Return a command as the engine of a host is called; one that was put so already is left as it is.

    Scripts of this package and the first word of a call are changed, and nothing that a person has given:
    what stands behind the first call is that call's own.
    """
    if engine == DOCKER or command.spoken:
        return command
    argv: list[Token] = list(command.argv)
    for index, token in enumerate(argv):
        if isinstance(token, str) and index and argv[index - 1] == "-c":
            argv[index] = spoken_text(token, engine)
        elif token == DOCKER and _VERB.fullmatch(str(argv[index + 1 : index + 2] and argv[index + 1])):
            argv[index] = engine
            break
    return Command(tuple(argv), command.stdin, spoken=True)


def spoken_text(text: str, engine: str) -> str:
    """Return a script of this package as the engine of a host is called."""
    return text if engine == DOCKER else _CALL.sub(engine, text)
