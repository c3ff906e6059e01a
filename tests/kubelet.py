"""Expansion of a container's command as a kubelet does it before the start."""

from __future__ import annotations


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
