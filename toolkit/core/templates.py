"""Templates of configuration, scripts and pages: filters refuse unquotable text; HTML is escaped."""

from __future__ import annotations

import functools
import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolkit.errors import ToolkitError

if TYPE_CHECKING:
    import jinja2

_PACKAGE = Path(__file__).resolve().parent.parent


def data_folder(name: str) -> Path:
    """Return a folder that is at the top of the repository, or packed into the wheel."""
    packed = _PACKAGE / "_data" / name
    return packed if packed.is_dir() else _PACKAGE.parent / name


@functools.cache
def package_text(name: str) -> str:
    """Return the text of a file of the package, by its path in the package."""
    return (_PACKAGE / name).read_text(encoding="utf-8")


def render_template(name: str, **values: Any) -> str:
    """Render ``compose/…``, ``ssh/…``, ``scripts/…`` or ``html/…`` by its path.

    Raises:
        jinja2.UndefinedError: a value that the template names is missing.
    """
    return _environment().get_template(name).render(**values)


@functools.cache
def _environment() -> jinja2.Environment:
    import jinja2  # imported late: most commands do not render

    folders = {name: data_folder(name) for name in ("compose", "ssh")}
    folders["scripts"] = _PACKAGE / "export" / "scripts"
    folders["html"] = _PACKAGE / "html"
    loader = jinja2.PrefixLoader({name: jinja2.FileSystemLoader(path) for name, path in folders.items()})
    environment = jinja2.Environment(
        loader=loader,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        # The others are text for compose, OpenSSH and shells: the filters below quote.
        autoescape=jinja2.select_autoescape(("html.j2",), default=False),
    )
    environment.filters["yaml"] = _yaml
    environment.filters["word"] = word
    environment.filters["line"] = _line
    environment.filters["setenv"] = _setenv
    environment.filters["sh"] = shlex.quote
    return environment


def yaml_text(value: Any) -> str:
    """Return a value in one line of YAML, in ASCII."""
    # JSON is YAML, except for characters above U+FFFF: JSON writes two halves that no YAML reader joins.
    # ASCII alone, because docker-compose 1.29 reads files in the locale's encoding.
    text = json.dumps(value, ensure_ascii=False)
    return "".join(c if " " <= c <= "~" else f"\\U{ord(c):08x}".replace("U0000", "u") for c in text)


def _yaml(value: Any) -> str:
    # Compose would interpret a single "$" as the start of a variable.
    return yaml_text(value).replace("$", "$$")


def word(value: Any) -> str:
    """Return a value that is one word of an OpenSSH configuration or of /etc/hosts.

    Raises:
        ToolkitError: the value is empty, or contains a character that ends or quotes a word.
    """
    text = str(value)
    if not text or any(c.isspace() or c in "\"'\\#" or not c.isprintable() for c in text):
        what = f"{text!r} cannot be used in an OpenSSH configuration file"
        raise ToolkitError(what, "choose a name without spaces, quotation marks, backslashes or #")
    return text


def _line(value: Any) -> str:
    """Refuse a line break: in a list of keys, a second line would be a key of another host."""
    text = str(value)
    if not text.isprintable():
        raise ToolkitError(f"{text!r} contains a control character")
    return text


def _setenv(pair: tuple[str, str]) -> str:
    name, value = pair
    if not value.isprintable() or '"' in value or "\\" in value:
        what = (
            f"sshd cannot set the variable {name} of the image, because the value contains "
            "a quotation mark, a backslash or a control character"
        )
        raise ToolkitError(what, f"in the image: change the value of {name}")
    return f'"{word(name)}={value}"'
