"""Write the generated pages of docs/reference. usage: reference.py"""

from __future__ import annotations

import difflib
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import typer.main
import yaml

sys.path.insert(0, str(Path(__file__).resolve().parent))

from api_page import api_page
from message_page import message_page

from toolkit.cli.app import app
from toolkit.cli.help import usages
from toolkit.cli.lazy import loaded
from toolkit.diagnose.known_errors import GAP, NAME, OR, KnownError, known_errors
from toolkit.errors import EXIT_CODES
from toolkit.hostsfile.parse import json_schema

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "reference"
PACKAGE = ROOT / "toolkit"
EXAMPLE = ROOT / "examples" / "hosts.full.yaml"
DIGITS = ROOT / "examples" / "digits"
MADE = "<!-- Written by `make docs` and compared by a test: change its sources, not this page. -->"


def pages() -> dict[str, str]:
    """Return file name and text of every page."""
    example = yaml.safe_load(EXAMPLE.read_text(encoding="utf-8"))
    return {
        "api.md": api_page(MADE),
        "cli.md": cli_page(typer.main.get_command(app)),
        "hosts-yaml.md": hosts_page(json_schema(), example),
        "known-errors.md": errors_page(known_errors()),
        "messages.md": message_page(PACKAGE, MADE),
        "porting.md": porting_page(DIGITS),
    }


# From one GPU to several


_PORTS = (
    (
        "train_single.py",
        "train_horovod.py",
        "Horovod",
        "The script needs six additions. Numbered comments in the diff explain the additions. Only rank 0 "
        "prints the progress and writes checkpoints.",
    ),
    (
        "train_single.py",
        "train_ddp.py",
        "DistributedDataParallel",
        "The additions are similar to the additions for Horovod, but DistributedDataParallel wraps the model "
        "instead of the optimizer. The wrapper sends the weights of rank 0 to all ranks.",
    ),
    (
        "train_ddp.py",
        "train_fsdp.py",
        "FSDP",
        "Unlike DDP, FSDP shards the weights, gradients and momentum of each layer over the ranks. "
        "All ranks take part in a checkpoint, because each rank has only a shard.",
    ),
    (
        "train_ddp.py",
        "train_ray.py",
        "Ray Train",
        "Unlike with DDP, Ray starts the workers and assigns a device to each worker.",
    ),
    (
        "train_ddp.py",
        "train_accelerate.py",
        "Accelerate",
        "Unlike with DDP, the settings of Accelerate select the wrapper of the model and the precision.",
    ),
    (
        "train_ddp.py",
        "train_deepspeed.py",
        "DeepSpeed",
        "Unlike with DDP, an engine contains the model and the optimizer, and shards both according to the "
        "configuration of DeepSpeed. Each rank writes its own part of a checkpoint.",
    ),
)


def porting_page(folder: Path) -> str:
    """Return the page with the difference between each example and the one before it."""
    lines = [
        *("# From one GPU to several", "", MADE, ""),
        "`examples/digits/train_single.py` trains on one GPU or on the CPU. The diffs on this page show",
        "the changes for several ranks. The changed scripts also run on one rank.",
    ]
    for before, after, title, about in _PORTS:
        old, new = ((folder / name).read_text(encoding="utf-8").splitlines() for name in (before, after))
        difference = difflib.unified_diff(old, new, before, after, lineterm="")
        lines += ["", f"## {title}", "", about, "", "```diff", *difference, "```"]
    return "\n".join(lines) + "\n"


def _table(header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> list[str]:
    lines = [header, tuple("---" for _ in header), *rows]
    return ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines]


def _code(text: str) -> str:
    return f"`{text}`" if text else ""


# The command line


def cli_page(command: Any) -> str:
    """Return the page about all verbs, in the order in which `toolkit --help` lists them."""
    lines = [
        *("# Command line", "", MADE, ""),
        "Replace words in capitals with your values. An option in parentheses is the opposite of the option",
        "before it. Every command has `--help`. After `toolkit --install-completion`, your shell completes",
        "commands, options, hosts and the jobs that your machine started or listed.",
        *("", "## toolkit", ""),
        *_options(command),
    ]
    for name, verb in _verbs(command, "toolkit"):
        lines += ["", f"## {name}", "", *_paragraphs(verb.help or ""), ""]
        lines += ["```", *(f"{name} {way}" for way in usages(verb)), "```", ""]
        lines += ["Examples:", "", "```sh", *verb.examples, "```", ""]
        lines += [*_arguments(verb), *_options(verb)]
    lines += ["", "## Exit codes", ""]
    lines += _table(("Code", "Meaning"), [(str(code), text) for code, text in EXIT_CODES.items()])
    lines += ["", *_paragraphs(_JSON)]
    return "\n".join(lines) + "\n"


_JSON = """After the end of a job, `toolkit run`, `toolkit attach` and `toolkit wait` exit with the exit code
of the job. On one host, `toolkit exec` exits with the exit code of the command.

With `--json`, a command that fails with an error message prints one object on standard output:
`{"ok": false, "error": {"what": "…", "fix": "…", "more": "…", "host": "…", "exit_code": 2, "problems":
[{"path": "…", "message": "…", "line": null}]}}`. `problems` lists the errors of the input.
`more` is a command that explains the message. `problems` and `more` can be empty."""


def _paragraphs(text: str) -> list[str]:
    return [
        part if part.startswith("- ") else " ".join(part.split()) if part else "" for part in _with_gaps(text)
    ]


def _with_gaps(text: str) -> Iterator[str]:
    for number, part in enumerate(text.strip().split("\n\n")):
        if number:
            yield ""
        yield part


def _verbs(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    for word, sub in command.commands.items():
        if hasattr(sub, "commands"):
            yield from _verbs(sub, f"{name} {word}")
        else:
            yield f"{name} {word}", loaded(sub)


def _params(verb: Any, kind: str) -> list[Any]:
    return [p for p in verb.params if p.param_type_name == kind and not getattr(p, "hidden", False)]


def _arguments(verb: Any) -> list[str]:
    rows = [(_code(p.metavar or p.name.upper()), p.help) for p in _params(verb, "argument") if p.help]
    return [*_table(("Argument", "Meaning"), rows), ""] if rows else []


def _options(verb: Any) -> list[str]:
    rows = [(_names(p), _code(_default(p)), _meaning(p)) for p in _params(verb, "option")]
    return _table(("Option", "Default", "Meaning"), sorted(rows, key=_by_name))


def _by_name(row: tuple[str, ...]) -> str:
    return row[0][row[0].index("--") :]


def _names(option: Any) -> str:
    value = "" if option.is_flag else f" {option.metavar or 'TEXT'}"
    names = [_code(name + (value if name.startswith("--") else "")) for name in option.opts]
    opposites = [_code(name) for name in option.secondary_opts]
    return ", ".join(names) + (f" ({', '.join(opposites)})" if opposites else "")


def _default(option: Any) -> str:
    if option.is_flag:
        # The default matters only if an opposite exists.
        return option.opts[0] if option.secondary_opts and option.default else ""
    return "" if option.default in (None, "", [], ()) else str(option.default)


def _meaning(option: Any) -> str:
    variable = option.envvar if isinstance(option.envvar, str) else ""
    notes = [f"variable: `{variable}`"] if variable else []
    notes += ["repeatable"] if option.multiple else []
    return (option.help or "").rstrip(".") + (f" ({'; '.join(notes)})" if notes else "")


# hosts.yaml


def hosts_page(schema: dict[str, Any], example: dict[str, Any]) -> str:
    """Return the page about every key of the file.

    Args:
        schema: see ``toolkit.hostsfile.parse.json_schema``.
        example: a file that has every key.
    """
    lines = [
        *("# hosts.yaml", "", MADE, ""),
        "hosts.yaml describes the hosts of one cluster and the settings of its containers. Before toolkit",
        "contacts a host, toolkit reports unknown keys and other errors of the file with line and path.",
        "",
        "`toolkit init` creates hosts.yaml. `toolkit schema -o hosts.schema.json` writes the JSON Schema of",
        "hosts.yaml. If hosts.yaml starts with `# yaml-language-server: $schema=hosts.schema.json`, editors",
        "with the YAML language server complete keys and mark errors.",
        "[examples/hosts.full.yaml](../../examples/hosts.full.yaml) contains every key.",
    ]
    todo: list[tuple[str, dict[str, Any], list[Any]]] = [("", schema, [example])]
    seen: set[str] = set()
    while todo:
        path, node, values = todo.pop(0)
        lines += ["", f"## {path or 'Top-level keys'}", ""]
        if path and node.get("description"):
            lines += [node["description"], ""]
        rows = []
        for key, field in node["properties"].items():
            found = [value[key] for value in values if isinstance(value, dict) and key in value]
            rows.append(
                (_code(key), _type(field), _given(node, key), field.get("description", ""), _shown(found))
            )
            for step, reference in _references(field):
                if reference not in seen:
                    seen.add(reference)
                    below = f"{path}/{key}{step}".lstrip("/")
                    todo.append((below, schema["$defs"][reference], _below(found)))
        lines += _table(("Key", "Value", "Default", "Meaning", "Example"), rows)
    return "\n".join(lines) + "\n"


def _given(node: dict[str, Any], key: str) -> str:
    if key in node.get("required", ()):
        return "required"
    field = node["properties"][key]
    if "default" in field:
        return _code(json.dumps(field["default"]).strip('"'))
    return "" if "(default:" in field.get("description", "") else "none"


def _choices(field: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the ways to write a value, except null."""
    ways = field.get("anyOf") or field.get("oneOf") or [field]
    return [way for way in ways if way.get("type") != "null"]


def _type(field: dict[str, Any]) -> str:
    return ", or ".join(dict.fromkeys(_one_type(way) for way in _choices(field)))


def _one_type(way: dict[str, Any]) -> str:
    if "$ref" in way:
        return "settings of a table below"
    if "anyOf" in way or "oneOf" in way:
        return _type(way)
    if "enum" in way:
        return " or ".join(_code(str(word)) for word in way["enum"])
    if "const" in way:
        return _code(str(way["const"]))
    kind = way.get("type")
    if kind == "integer":
        least, most = way.get("minimum"), way.get("maximum")
        return f"number from {least} to {most}" if most is not None else f"number of at least {least or 0}"
    if kind == "array":
        return f"list (each entry: {_type(way.get('items', {}))})"
    if kind == "object":
        values = [*way.get("patternProperties", {}).values(), way.get("additionalProperties")]
        value = next((v for v in values if isinstance(v, dict)), {})
        return f"mapping (each value: {_type(value)})"
    if way.get("format") == "ipv4":
        return "IPv4 address"
    return {"string": "text", "boolean": "true or false", "number": "number"}.get(str(kind), "anything")


def _references(field: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the models below a value, with the step of the path that leads to each."""
    for way in _choices(field):
        if "$ref" in way:
            yield "", way["$ref"].rpartition("/")[2]
        if isinstance(way.get("items"), dict):
            yield from ((f"/N{step}", name) for step, name in _references(way["items"]))
        values = [*way.get("patternProperties", {}).values(), way.get("additionalProperties")]
        for value in values:
            if isinstance(value, dict):
                yield from ((f"/NAME{step}", name) for step, name in _references(value))


def _below(values: list[Any]) -> list[Any]:
    """Return the values one level below, in mappings and lists, and the values themselves."""
    found: list[Any] = []
    for value in values:
        found += value if isinstance(value, list) else []
        found += [value, *value.values()] if isinstance(value, dict) else []
    return found


def _shown(values: list[Any]) -> str:
    # A large value is easier to read in the complete example.
    for value in values:
        text = yaml.safe_dump(value, default_flow_style=True, width=1000).removesuffix("...\n").strip()
        if len(text) <= 80:
            return _code(text)
    return ""


# Known errors


def errors_page(errors: Sequence[KnownError]) -> str:
    """Return the page about errors that jobs print, in the order of their search."""
    lines = [
        *("# Known errors", "", MADE, ""),
        "Messages of NCCL, MPI, PyTorch, CUDA, the kernel and others that `toolkit why` recognizes in the",
        f"logs of a job. `{GAP.strip()}` matches any text, `{NAME}` matches a word without a dot or a slash,",
        "and case is ignored.",
        "If a line matches several rows, the first row counts.",
        "`toolkit --explain NAME` prints one row, and so does `toolkit --explain` with a line of a log.",
        "[Messages of toolkit](messages.md) are on their own page.",
        "",
    ]
    rows = [(_code(e.name), _words(e.pattern), e.what, e.fix) for e in errors]
    return "\n".join([*lines, *_table(("Name", "Message", "Cause", "Fix"), rows)]) + "\n"


def _words(pattern: str) -> str:
    return ", ".join(f"`` {way} ``" if "`" in way else _code(way) for way in pattern.split(OR))


def files() -> dict[Path, str]:
    """Return path and text of every page."""
    return {FOLDER / name: text for name, text in pages().items()}


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    for path, text in files().items():
        path.write_text(text, encoding="utf-8", newline="\n")
        print(f"wrote {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
