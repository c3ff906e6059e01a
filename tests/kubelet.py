"""A manifest as kubectl reads it, and the expansion of a container's command as a kubelet does it."""

from __future__ import annotations

import re
from typing import Any

import yaml


class _Kubectl(yaml.SafeLoader):
    """Reads plain words as numbers and booleans that PyYAML reads as text."""


# As `resolve` in resolve.go of gopkg.in/yaml.v2 does it.
_NUMBER = r"[-+]?(0o[0-7_]+|[0-9_]*[0-9][0-9_]*|(\.[0-9_]+|[0-9_]+(\.[0-9_]*)?)([eE][-+]?[0-9_]+)?)$"
_Kubectl.add_implicit_resolver("!converted", re.compile(rf"{_NUMBER}|[yYnN]$"), None)
_Kubectl.add_constructor("!converted", lambda loader, node: ("converted", node.value))


def read(text: str) -> Any:
    """Return a manifest as kubectl reads it."""
    return yaml.load(text, Loader=_Kubectl)


def expanded(text: str) -> str:
    """Return a word of a command, or a variable's value, in which no other variable is named.

    As k8s.io/kubernetes/third_party/forked/golang/expansion does it: "$$" is one "$", and "$(NAME)" the
    variable of that name, of which there must be none here.
    """
    made, rest = "", text
    while rest:
        if rest.startswith("$$"):
            made, rest = made + "$", rest[2:]
        else:
            assert not rest.startswith("$("), f"a variable of Kubernetes: {rest[:40]!r}"
            made, rest = made + rest[0], rest[1:]
    return made
