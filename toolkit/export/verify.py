"""Verification of a rendered job; if Slurm is installed, it includes a run of two ranks."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from toolkit.core.host_programs import packed
from toolkit.core.printable import counted
from toolkit.core.runner import is_here, run_here
from toolkit.errors import BadInput, Interrupted, Problem
from toolkit.export.job import BatchJob
from toolkit.jobs.control import interrupts_held
from toolkit.protocol.decode import DecodeError, decode_json

# Name of each kind's definition in kubectl.
_PLURALS = {"MPIJob": "mpijobs.kubeflow.org", "TrainJob": "trainjobs.trainer.kubeflow.org"}
# Maximum seconds for the two ranks, including the wait for free nodes.
_PATIENCE = 900.0
# Maximum seconds without an answer of Slurm's controller, which does not answer while it restarts.
_SILENCE = 60.0
_MOST_LOG = 1 << 20  # bytes that are read of its end
# https://slurm.schedmd.com/squeue.html#SECTION_JOB-STATE-CODES: a job in one of these is not finished.
_GOING_ON = ("CONFIGURING", "COMPLETING", "PENDING", "RUNNING", "SUSPENDED", "RESIZING", "REQUEUED")
# https://kubernetes.io/docs/tasks/extend-kubernetes/custom-resources/custom-resource-definitions/
_OPEN = "x-kubernetes-preserve-unknown-fields"
# Fields of every object, which no definition contains.
_COMMON = {"apiVersion": {"type": "string"}, "kind": {"type": "string"}, "metadata": {"type": "object"}}


@dataclass(frozen=True)
class Trial:
    """Result of one check; ``verdict`` is ok, error or not checked."""

    verdict: str
    what: str
    detail: str = ""


def rehearse_slurm(
    job: BatchJob, text: str, render: Callable[[BatchJob], str], tell: Callable[[str], None]
) -> Iterator[Trial]:
    """Check a script for sbatch, and run two ranks of it if sbatch is installed.

    Args:
        render: renders the script of another job in the same way.
        tell: receives a line with the state of the two ranks, and the reason of a wait, after each change.

    Raises:
        Interrupted: Ctrl-C while the two ranks waited or ran; the job is cancelled.
    """
    if is_here("bash"):
        read = run_here(("bash", "-n"), text)
        valid = "valid" if read.ok else "invalid"
        what = f"the script has {valid} Bash syntax (bash -n)"
        yield Trial("ok" if read.ok else "error", what, read.output)
    else:
        yield Trial("not checked", "cannot check the Bash syntax of the script: your machine has no bash")
    if not is_here("sbatch"):
        yield Trial(
            "not checked",
            "cannot submit a test job: your machine has no sbatch; run this command on a login node",
        )
        return
    planned = run_here(("sbatch", "--test-only"), text)
    accepts = "accepts" if planned.ok else "refuses"
    what = f"Slurm {accepts} the job (sbatch --test-only)"
    yield Trial("ok" if planned.ok else "error", what, planned.output)
    if planned.ok:
        yield _two_ranks(job, render, tell)


def _two_ranks(job: BatchJob, render: Callable[[BatchJob], str], tell: Callable[[str], None]) -> Trial:
    nodes = tuple(replace(node, slots=1, gpus=min(node.gpus, 1)) for node in job.nodes[:2])
    two = replace(
        job, name=f"{job.name[:34]}-smoke", nodes=nodes, command=("python3", "-c", packed("bench.allreduce"))
    )
    what = f"all-reduce over {counted(two.world_size, 'rank')} with {job.launcher} under Slurm"
    log = Path(f"{two.name}-{os.getpid()}.log").absolute()
    number, state, code, printed = "", "", "", ""
    began = answered = time.monotonic()
    try:
        with interrupts_held():
            sent = run_here(("sbatch", "--parsable", f"--output={log}"), render(two), apart=True)
            number = sent.stdout.strip().partition(";")[0]
        if not sent.ok or not number.isdecimal():
            return Trial("error", what, sent.output)
        while not state or state in _GOING_ON:
            if time.monotonic() > began + _PATIENCE:
                run_here(("scancel", number))
                return Trial(
                    "error",
                    what,
                    f"toolkit canceled job {number}, which was still {state} after {_PATIENCE:.0f} s",
                )
            time.sleep(1)
            shown = run_here(("scontrol", "show", "job", number))
            if not shown.ok:
                if time.monotonic() > answered + _SILENCE:
                    run_here(("scancel", number))
                    return Trial(
                        "error",
                        what,
                        f"toolkit canceled job {number}, because `scontrol show job {number}` failed for "
                        f"{_SILENCE:.0f} s: {shown.output}",
                    )
                continue
            answered, about = time.monotonic(), shown.stdout
            state = next(iter(re.findall(r"JobState=(\w+)", about)), "GONE")
            code = next(iter(re.findall(r"ExitCode=(\d+:\d+)", about)), "?")
            reason = next(iter(re.findall(r"Reason=(\S+)", about)), "None")
            standing = state if reason == "None" else f"{state} ({reason})"
            if standing != printed and state in _GOING_ON:
                tell(
                    f"test job {number} is {standing}; toolkit waits at most {_PATIENCE:.0f} s, "
                    "and Ctrl-C cancels the job"
                )
                printed = standing
    except KeyboardInterrupt:
        if not number.isdecimal():
            raise
        with interrupts_held():  # another Ctrl-C would otherwise leave the job in the queue
            run_here(("scancel", number), apart=True)
        raise Interrupted(f"interrupted: toolkit canceled job {number}") from None
    output = _end_of(log)
    if state == "COMPLETED" and (line := re.search(rf"all-reduce over {two.world_size} ranks.*", output)):
        log.unlink()
        return Trial("ok", what, line.group())
    if not output:
        return Trial(
            "error", what, f"job {number} is {state} with exit code {code}; {log} is empty or missing"
        )
    return Trial(
        "error",
        what,
        f"job {number} is {state} with exit code {code}; the end of {log}:\n"
        + "\n".join(output.splitlines()[-5:]),
    )


def _end_of(log: Path) -> str:
    """Return the end of a file that programs of the image wrote; empty without the file."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _MOST_LOG))
            return file.read(_MOST_LOG).decode(errors="replace")
    except FileNotFoundError:
        return ""


def rehearse_kubernetes(
    made: Mapping[str, Any], text: str, definition: Mapping[str, Any] | None
) -> Iterator[Trial]:
    """Check a manifest against its definition, and with a dry run of the cluster.

    Args:
        text: the manifest as it is printed.
        definition: None for the definition of kubectl.

    Raises:
        BadInput: the definition is of another kind.
    """
    kind = made["kind"]
    cluster = is_here("kubectl") and run_here(("kubectl", "get", "--raw", "/version")).ok
    if definition is None and cluster:
        got = run_here(("kubectl", "get", "crd", _PLURALS[kind], "-o", "json"))
        try:
            definition = decode_json(dict[str, object], got.stdout) if got.ok else None
        except DecodeError as error:
            yield Trial(
                "not checked", f"cannot read the definition of {kind} that kubectl printed", str(error)
            )
        if not got.ok:
            yield Trial(
                "not checked", f"kubectl cannot read the definition of {kind} in the cluster", got.output
            )
    if definition is None:
        fix = f"--crd FILE with the output of `kubectl get crd {_PLURALS[kind]} -o yaml`"
        yield Trial("not checked", f"cannot check the manifest without a definition of {kind}; add {fix}")
        return
    try:
        problems = manifest_problems(made, definition)
    except ValueError as error:
        raise BadInput("--crd", (Problem("", str(error)),)) from error
    matches = "does not match" if problems else "matches"
    what = f"the manifest {matches} the definition of {kind}"
    yield Trial("error" if problems else "ok", what, "\n  ".join(problems))
    if cluster:
        tried = run_here(("kubectl", "create", "--dry-run=server", "-f", "-"), text)
        accepts = "accepts" if tried.ok else "refuses"
        what = f"the cluster {accepts} the manifest (server-side dry run)"
        yield Trial("ok" if tried.ok else "error", what, tried.output)
    else:
        yield Trial(
            "not checked",
            "cannot do a dry run: your machine has no kubectl, or kubectl cannot reach a cluster",
        )


def manifest_problems(manifest: Mapping[str, Any], crd: Mapping[str, Any]) -> list[str]:
    """Return the problems of a manifest, such as ``spec/trainer/numNodes: …``; empty for a valid manifest.

    Rules in the Common Expression Language (x-kubernetes-validations) are not checked.

    Args:
        crd: the output of `kubectl get crd NAME -o yaml`.

    Raises:
        ValueError: the definition is of another kind, or has no schema for this version.
    """
    import jsonschema  # imported only for a check

    version = str(manifest["apiVersion"]).rpartition("/")[2]
    try:
        kind = crd["spec"]["names"]["kind"]
        schemas = {each["name"]: each["schema"]["openAPIV3Schema"] for each in crd["spec"]["versions"]}
    except (KeyError, TypeError) as error:
        raise ValueError("the input contains no CustomResourceDefinition") from error
    if kind != manifest["kind"] or version not in schemas:
        made = f"{manifest['kind']} {version}"
        defined = f"{kind} {', '.join(schemas)}"
        raise ValueError(f"the CustomResourceDefinition is for {defined}, but the manifest is {made}")
    schema = _closed(schemas[version])
    schema["properties"] = {**_COMMON, **schema.get("properties", {})}
    errors = jsonschema.Draft202012Validator(schema).iter_errors(manifest)
    return sorted(
        f"{'/'.join(map(str, error.absolute_path)) or '(all)'}: {error.message}" for error in errors
    )


def _closed(schema: Any) -> Any:
    """Return a schema in which an object has only the named fields."""
    if isinstance(schema, list):
        return [_closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    made = {
        # Names of fields are not keywords of JSON Schema.
        name: {field: _closed(of) for field, of in value.items()} if name == "properties" else _closed(value)
        for name, value in schema.items()
        if name != "description"
    }
    if "properties" in made and not made.get(_OPEN):
        made.setdefault("additionalProperties", False)
    return made
