"""toolkit schema: the JSON Schema of hosts.yaml, for editors."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from toolkit.cli.common import put_file, say
from toolkit.core.files import write_file
from toolkit.hostsfile.parse import json_schema


def schema(
    output: Annotated[
        str, typer.Option("-o", "--output", metavar="FILE", help="Write it here; else to standard output.")
    ] = "",
) -> None:
    """Print the JSON Schema of hosts.yaml: editors that know it complete keys and mark what is wrong."""
    text = json.dumps(json_schema(), indent=2) + "\n"
    if output in ("", "-"):
        put_file(text)
        return
    say(f"wrote {write_file(output, text)}; put this line on top of hosts.yaml:")
    say(f"# yaml-language-server: $schema={output}")
