"""toolkit schema: print the JSON Schema of hosts.yaml for editors."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from toolkit.cli.common import put_file, say
from toolkit.core.files import write_file
from toolkit.hostsfile.parse import json_schema


def schema(
    output: Annotated[
        str,
        typer.Option(
            "-o", "--output", metavar="FILE", help="Write the schema to FILE (default: standard output)"
        ),
    ] = "",
) -> None:
    """Print the JSON Schema of hosts.yaml for editors.

    With the schema, many editors can complete keys and highlight errors in hosts.yaml.

    Examples:
        toolkit schema --output hosts.schema.json
    """
    text = json.dumps(json_schema(), indent=2) + "\n"
    if output in ("", "-"):
        put_file(text)
        return
    say(f"wrote {write_file(output, text)}; add this line at the top of hosts.yaml:")
    say(f"# yaml-language-server: $schema={output}")
