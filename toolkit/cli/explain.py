"""The text of `toolkit --explain`: cause and fix of a message from toolkit or from a training job."""

from __future__ import annotations

from collections.abc import Iterator

from toolkit.diagnose.known_errors import GAP, OR, KnownError, known_errors, match
from toolkit.diagnose.messages import Message, MessageTopic, by_name, message_of, topics
from toolkit.errors import BadInput, Problem


def explanation(words: str) -> str:
    """Return the explanation of a message, given its name or its text, or of all messages of a topic.

    Raises:
        BadInput: no message, known error or topic matches.
    """
    own, known = by_name(), {error.name: error for error in known_errors()}
    if words in own:
        return _own(own[words])
    if words in known:
        return _known(known[words])
    if words in topics():
        return "\n".join(_topic(topics()[words]))
    if message := message_of(words):
        return _own(message)
    if errors := match(words.splitlines()):
        return "\n\n".join(map(_known, errors))
    problem = Problem("--explain", f"no message, known error or topic matches {words!r}")
    fix = f"toolkit --explain {next(iter(topics()))}  # lists the messages of a topic: {', '.join(topics())}"
    raise BadInput("command line", (problem,), fix)


def _topic(topic: MessageTopic) -> Iterator[str]:
    yield topic.title
    for message in topic.messages:
        yield f"  {message.name}: {message.says[0]}"


def _own(message: Message) -> str:
    return _text(message.name, message.says, message.cause, message.fix)


def _known(error: KnownError) -> str:
    ways = tuple(way.replace(GAP, " … ") for way in error.pattern.split(OR))
    return _text(error.name, ways, error.what, error.fix)


def _text(name: str, says: tuple[str, ...], cause: str, fix: str) -> str:
    return "\n".join([name, *(f"  message: {way}" for way in says), f"  cause: {cause}", f"  fix: {fix}"])
