"""`toolkit report`: asks every host of a job what it knows of it."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import replace

from toolkit.cluster.session import Session
from toolkit.core.answers import answer_of, read_answer
from toolkit.core.causes import words_of
from toolkit.core.command import command
from toolkit.core.facts import Facts
from toolkit.diagnose.why import masked_job, secrets_of
from toolkit.errors import ToolkitError
from toolkit.jobs.records import job_status
from toolkit.monitor.job_report import JobReport, make_report
from toolkit.protocol.account import Account
from toolkit.protocol.decode import decode
from toolkit.protocol.names import program
from toolkit.protocol.redact import masked
from toolkit.remote.fanout import fan_out

_SECONDS = 120.0


def job_report(session: Session, job: str) -> JobReport:
    """Return what the hosts know of a job, which may run or be over.

    Raises:
        NotReady: there is no such job, or main does not run.
        ToolkitError: none of its hosts says anything.
    """
    status = job_status(session, job)
    main = session.inventory.main
    own = [name for name, _ in status.hosts]
    # Those of earlier attempts, too; any host may have been one. A job in parts has no earlier attempts.
    names = [*own, main] if session.inventory.in_parts else [main, *own, *session.inventory.names]
    names = list(dict.fromkeys(names))
    silent = {name: session.errors[name].what for name in names if name in session.errors}
    secrets = secrets_of(session)

    def ask(name: str) -> tuple[float, Account]:
        answered, said = _ask(session, name, status.id)
        with answer_of(name, f"job {job}"):
            return answered, decode(Account, masked(said, secrets))

    said, errors = fan_out([name for name in names if name not in silent], ask)
    silent |= {name: error.what for name, error in errors.items()}
    told = {name: said[name][1] for name in names if name in said and said[name][1].record}
    if not told:
        lines = "".join(f"\n  {name}: {why}" for name, why in silent.items())
        raise ToolkitError(f"no host says anything of {job}{lines}", "toolkit status")
    for name, what in told.items():
        told[name] = replace(what, versions=what.versions | host_versions(session.facts[name]))
    took_part = {name for name, _ in status.hosts}
    missing = {name: why for name, why in silent.items() if name in took_part}
    return make_report(
        session.inventory.cluster,
        masked_job(status, secrets),
        told,
        missing,
        {name: said[name][0] for name in told},
    )


def host_versions(facts: Facts) -> dict[str, str]:
    """Return what a host has below the image: engine, programs of the toolkit, GPUs and their driver."""
    found = {facts.engine: facts.docker, "image store": facts.store}
    if facts.version:
        found["toolkit"] = facts.version
    if facts.gpus:
        names = Counter(gpu.name for gpu in facts.gpus)
        found["GPUs"] = ", ".join(f"{number} x {name}" for name, number in names.items())
        found["driver"] = facts.gpus[0].driver
    return found


def _ask(session: Session, host: str, job: str) -> tuple[float, object]:
    """When a host has answered, by the clock here, and the JSON that it sent.

    Raises:
        ToolkitError: no container of the cluster runs there, or it does not answer.
    """
    result = session.container(host).run(command(*program("monitor.job_facts"), job), _SECONDS)
    answered = time.time()
    if not result.ok:
        what = f"does not say what it knows of {job}: {words_of(result.output)}"
        raise ToolkitError(what, "toolkit up", host)
    return answered, read_answer(object, result.stdout, host, f"job {job}")
