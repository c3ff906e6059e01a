"""Messages about problems in hosts.yaml: values, paths and near misses as text, and pydantic's errors."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from typing import Any

# A place in the file: keys and list indexes from the top.
Path = tuple[str | int, ...]

_LONGEST = 60


def shown(value: object) -> str:
    """Return a value for a message: in YAML's form, shortened, without unprintable characters."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    if isinstance(value, str) and len(value) > _LONGEST:
        value = value[: _LONGEST - 1] + "…"
    return repr(value)


def kind(value: object) -> str:
    """Return the type of a value without the value, which can be a secret."""
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, int | float):
        return "a number"
    if isinstance(value, str):
        return "text"
    return shown(value)


def path_text(path: Path) -> str:
    """Return a path as ``hosts/gpu2/slots``; keys that are empty, long or unprintable come quoted."""
    return "/".join(_key_text(str(key)) for key in path)


def _key_text(key: str) -> str:
    if "=" in key:
        key = key.partition("=")[0] + "=…"  # a variable in the form NAME=value, possibly a secret
    return key if key.isprintable() and 0 < len(key) <= _LONGEST else shown(key)


def meant(word: str, known: Iterable[str]) -> str:
    """Return ``did you mean 'slots'?`` or, without a similar name, the list of known names (shortened)."""
    names = list(known)
    # difflib is quadratic in the length of the words, and the file can contain very long words.
    near = difflib.get_close_matches(word[:_LONGEST], names[:2000], 1)
    if near:
        return f"did you mean {shown(near[0])}?"
    more = ", …" if len(names) > 24 else ""
    begin = "known names are " if len(names) != 1 else "the only known name is "
    return begin + ", ".join(path_text((name,)) for name in names[:24]) + more


def fits(pattern: str, text: str) -> bool:
    """Return whether the pattern matches the complete text."""
    return re.fullmatch(pattern, text, re.ASCII) is not None


def require(condition: bool, should: str, found: object) -> None:
    """Refuse a value with what it should be.

    Raises:
        ValueError: unless ``condition``.
    """
    if not condition:
        raise ValueError(f"should be {should}, found {shown(found)}")


# pydantic adds the accepted form of a value to the location of an error, after this character. No key of the
# file can begin with it: control characters are removed before.
FORM = "\0"

_REQUIRED = {
    "cluster": "write a name for the cluster, as in 'cluster: demo'",
    "image": "write the name of the image, as in 'image: trainer:1.0'",
    "hosts": "write the hosts, as in 'hosts: [gpu1, gpu2]'",
    "name": "write the name of the image",
    "source": "write the absolute path of a folder or file on the hosts",
    "data/source": "write the path of a folder or file on your machine",
    "path": "write the absolute path of a folder on every host",
    "target": "write the absolute path in the containers",
    "soft": "write both soft and hard, or one number for both",
    "hard": "write both soft and hard, or one number for both",
}

# pydantic's error types that report only a wrong type of value.
_SORTS = {
    "int_type": "an integer",
    "string_type": "text",
    "bool_type": "true or false",
    "dict_type": "a mapping",
    "list_type": "a list",
}
# Values that have several accepted forms, by key and by their depth below it.
_FORMS = {
    ("hosts", 0): "a mapping of names to settings, or a list of names",
    ("mounts", 1): "'/source:/target' or a mapping with source and target",
    ("image", 0): "an image's name, or a mapping with name and pull",
    ("gpus", 0): "a number, or a list of indexes or UUIDs",
    ("gpus", 1): "an index or a UUID",
    ("ulimits", 1): "a number, unlimited, or a mapping with soft and hard",
    ("ulimits", 2): "a number or unlimited",
    ("command", 0): "a list of words, or text with shell quoting",
}
# Values below these keys can be secrets, also by mistake: they are never shown.
_HIDDEN = {
    "env": ("a mapping such as NAME: 'value'", "text", "; write '' for an empty value"),
    "secrets": (
        "a mapping such as NAME: path/of/file",
        "the path of a file",
        "; write a path or remove the key",
    ),
}


def fault(
    error: Mapping[str, Any],
    keys: Mapping[str, tuple[str, ...]],
    model_of: Mapping[str, str],
    hint: bool = True,
) -> tuple[Path, str, bool]:
    """Return path, message and whether the key itself is at fault.

    Args:
        error: one item of ``ValidationError.errors()``.
        keys: the keys of each model, by the model's name.
        model_of: the model of the keys below a top-level key, by that key; "" for the top itself.
        hint: whether to search for the key that was meant.
    """
    place = [p for p in error["loc"] if not (isinstance(p, str) and p.startswith(FORM))]
    sort, value = error["type"], error["input"]
    at_key = sort == "extra_forbidden"
    if not at_key and len(place) > 1 and place[-1] == "[key]" and place[-2] != "[key]":
        at_key = True
        place.pop()
    path = tuple(place)
    if sort == "extra_forbidden":
        return path, _unknown(path, keys, model_of) if hint else "unknown key", True
    if sort == "value_error":
        return path, str(error["ctx"]["error"]), at_key
    if sort == "missing":
        own = f"{path[0]}/{path[-1]}"
        write = _REQUIRED[own if own in _REQUIRED else str(path[-1])]
        return path, f"this key is missing; {write}", at_key
    if sort == "model_type" and path[0] == "hosts" and str(path[-1]) in keys[model_of["hosts"]]:
        return path, f"{path[-1]} is a key of a host; indent it more than the host's name", True
    return path, _wrong_sort(path, sort, value), at_key


def _unknown(path: Path, keys: Mapping[str, tuple[str, ...]], model_of: Mapping[str, str]) -> str:
    key = str(path[-1])
    cluster, host = model_of[""], model_of["hosts"]
    model = cluster if len(path) == 1 else model_of[_holder(path)]
    if model == cluster and key in keys[host]:
        return "this key belongs to a host; write the key under the host's name"
    if model in (host, model_of["services"]) and key in keys[cluster]:
        return "this key belongs to the cluster; write the key at the top level"
    return f"unknown key; {meant(key, keys[model])}"


def _holder(path: Path) -> str:
    """Return the parent of a key: a service has mounts too."""
    return "mounts" if path[0] == "services" and len(path) > 3 else str(path[0])


def _wrong_sort(path: Path, sort: str, value: object) -> str:
    own = path[2:] if path[0] in ("hosts", "services") and len(path) > 2 else path
    key, depth = str(own[0]), len(own) - 1
    if key in _HIDDEN:
        form, item, nothing = _HIDDEN[key]
        hint = (
            ""
            if isinstance(value, dict | list)
            else nothing
            if value is None
            else "; put the value in quotes"
        )
        return f"should be {item if depth else form}, found {kind(value)}{hint if depth else ''}"
    if sort in ("union_tag_not_found", "union_tag_invalid"):
        hint = (
            "; write a value or remove the entry" if value is None and key not in ("hosts", "mounts") else ""
        )
        if key == "image" and isinstance(value, int | float):
            hint = "; put the value in quotes"
        return f"should be {_FORMS[key, depth]}, found {shown(value)}{hint}"
    if sort == "too_short":
        return "should contain at least one word, found an empty list"
    if sort == "model_type" and path[0] == "services":
        return f"should be a mapping such as 'command: …', found {shown(value)}"
    if sort == "model_type" and path[0] == "data":
        return f"should be a mapping with source, path and target, found {shown(value)}"
    if sort == "model_type":
        return f"should be empty or a mapping such as 'address: 10.0.0.1', found {shown(value)}"
    message = f"should be {_SORTS.get(sort, 'a value that `toolkit schema` allows')}, found {shown(value)}"
    if sort == "list_type" and isinstance(value, str) and value.startswith("-"):
        return f"{message}; write a space after '-'"
    if value is None:
        return f"{message}; write a value or remove the key"
    if path[0] == "hosts" and len(path) == 2 and isinstance(value, dict):
        return (
            "a list of hosts contains only names; "
            "for settings, write the hosts without '-', as in 'gpu1: {slots: 8}'"
        )
    if path in (("shm_size",), ("log_size",)):
        return f"{message}; write the value with a unit, as in 8g"
    if sort == "string_type" and not isinstance(value, dict | list):
        return f"{message}; put the value in quotes"
    if sort == "int_type" and isinstance(value, str) and value.isdecimal():
        return f"{message}; remove the quotes"
    return message
