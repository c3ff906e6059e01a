"""`toolkit report`: query every host of a job and combine the answers."""

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
    """Return the report of a running or finished job.

    Raises:
        NotReady: no such job exists, or the main container is not running.
        ToolkitError: no host has a record of the job.
    """
    status = job_status(session, job)
    main = session.inventory.main
    own = [name for name, _ in status.hosts]
    # Any host might have taken part in an earlier attempt. A job in parts has no earlier attempts.
    names = [*own, main] if session.inventory.in_parts else [main, *own, *session.inventory.names]
    names = list(dict.fromkeys(names))
    silent = {name: session.errors[name].what for name in names if name in session.errors}
    secrets = secrets_of(session)

    def ask(name: str) -> tuple[float, Account]:
        answered, report = _ask(session, name, status.id)
        with answer_of(name, f"the records of job {job}"):
            return answered, decode(Account, masked(report, secrets))

    reports, errors = fan_out([name for name in names if name not in silent], ask)
    silent |= {name: error.what for name, error in errors.items()}
    accounts = {name: reports[name][1] for name in names if name in reports and reports[name][1].record}
    if not accounts:
        lines = "".join(f"\n  {name}: {why}" for name, why in silent.items())
        raise ToolkitError(
            f"no host reported a record of job {job}{lines}", "toolkit status  # shows which hosts answer"
        )
    for name, what in accounts.items():
        accounts[name] = replace(what, versions=what.versions | host_versions(session.facts[name]))
    took_part = {*own, *status.former_hosts}
    missing = {name: why for name, why in silent.items() if name in took_part}
    return make_report(
        session.inventory.cluster,
        masked_job(status, secrets),
        accounts,
        missing,
        {name: reports[name][0] for name in accounts},
    )


def host_versions(facts: Facts) -> dict[str, str]:
    """Return the versions of a host's own software: container engine, toolkit, GPUs and their driver."""
    found = {facts.engine: facts.docker, "image store": facts.store}
    if facts.version:
        found["toolkit"] = facts.version
    if facts.gpus:
        names = Counter(gpu.name for gpu in facts.gpus)
        found["GPUs"] = ", ".join(f"{number} x {name}" for name, number in names.items())
        found["driver"] = facts.gpus[0].driver
    return found


def _ask(session: Session, host: str, job: str) -> tuple[float, object]:
    """Return the time of a host's answer, by the clock of your machine, and its JSON.

    Raises:
        ToolkitError: no container of the cluster runs on the host, or the host does not answer.
    """
    result = session.container(host).run(command(*program("monitor.job_facts"), job), _SECONDS)
    answered = time.time()
    if not result.ok:
        what = f"the host cannot report about job {job}: {words_of(result.output)}"
        raise ToolkitError(what, "toolkit up", host)
    return answered, read_answer(object, result.stdout, host, f"the records of job {job}")
