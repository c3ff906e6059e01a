"""Cases of what earlier clusters and jobs have left."""

from __future__ import annotations

from dataclasses import replace

from tests.unit.checks.recorded import HOME, marks, process
from tests.unit.checks.scenes import Case, scene, with_host
from tests.unit.cluster_world import JOB_ID, running
from toolkit import __version__
from toolkit.checks.model import Scene

_STOPPED = replace(running("demo", "gpu2", "worker"), state="exited", exit_code=137)
_NO_SSHD = replace(running("demo", "gpu2", "worker", config="x"), state="exited", exit_code=127)
_ABANDONED = replace(running("old", "gpu2", "worker"), state="exited", id="a" * 64)
_RANKS = (process(811, JOB_ID), process(812, JOB_ID))
_SUPERVISOR = process(700, JOB_ID, "SUPERVISOR")


def _holds(*containers: object, base: Scene | None = None) -> Scene:
    return with_host(base or scene(), "gpu2", {"containers": containers})


def _of_version(container: str, files: str) -> Scene:
    worker = running("demo", "gpu2", "worker", version=container)
    return with_host(scene(), "gpu2", {"containers": (worker,), "version": files})


def _marked(gpu1: str, gpu2: str) -> Scene:
    base = scene(marks=gpu2)
    one = base.seen["gpu1"]
    return with_host(base, "gpu1", answers={**one.answers, "marks": gpu1})


_OTHER_STATE = scene(marks=marks("gpu2", folders=(f"{HOME}/.local/state/toolkit/old/gpu2",)))
# The process of a container that the engine of this cluster does not list.
_OTHER_ENGINE = scene(
    marks=marks(
        "gpu2", process(811, JOB_ID, cluster="old"), folders=(f"{HOME}/.local/state/toolkit/old/gpu2",)
    )
)
_OTHER_HOST = scene(marks=marks("gpu2", folders=(f"{HOME}/.local/state/toolkit/old/gpu1",)))
_STATE = f"{HOME}/.local/state/toolkit/demo"
_FORMER = "state|10.77.0.3|demo|node 2"
_RENAMED = scene(marks=marks("gpu2", _FORMER))
# `up` has not been run with the new name.
_NOT_YET = scene(marks=f"{_FORMER}\nlooked")

CASES = (
    *(
        Case(check, "ok", scene())
        for check in ("left-containers", "left-processes", "left-state", "cluster-version")
    ),
    Case("left-containers", "ok", _holds(running("demo", "gpu2", "worker"))),
    Case("left-containers", "warning", _holds(_STOPPED), "is not running (exited, exit code 137)"),
    Case("left-containers", "warning", _holds(_NO_SSHD), "is not running (exited, exit code 127)"),
    Case("left-containers", "warning", _holds(_ABANDONED), "belongs to a removed cluster"),
    Case(
        "left-containers",
        "warning",
        _holds(replace(_ABANDONED, mounts=("/data", f"{HOME}/.local/state/toolkit/old/gpu2/etc/hosts"))),
        "belongs to a removed cluster",
    ),
    Case(
        "left-containers",
        "warning",
        with_host(
            _holds(replace(_ABANDONED, mounts=(f"{HOME}/.local/state/toolkit/old/gpu2/etc/hosts",))),
            "gpu2",
            {"state_dir": f"{HOME}//.local/state/toolkit/demo/gpu2"},
        ),
        "belongs to a removed cluster",
    ),
    # The hosts.yaml of that cluster sets another state_dir, which the check does not search.
    Case(
        "left-containers",
        "ok",
        _holds(replace(_ABANDONED, mounts=("/data", "/scratch/alice/toolkit/old/gpu2/etc/hosts"))),
    ),
    # Its state directory is there: that cluster's own `up` starts it again.
    Case("left-containers", "ok", _holds(_ABANDONED, base=_OTHER_STATE)),
    Case("left-containers", "ok", _holds(replace(_ABANDONED, state="running"))),
    Case(
        "left-containers",
        "ok",
        _holds(replace(_ABANDONED, labels={**_ABANDONED.labels, "toolkit.owner": "mallory"})),
    ),
    Case(
        "left-containers",
        "ok",
        _holds(replace(_STOPPED, labels={**_STOPPED.labels, "toolkit.owner": "mallory"})),
    ),
    Case("left-processes", "warning", _marked(marks("gpu1"), marks("gpu2", *_RANKS)), "2 processes of job"),
    Case("left-processes", "ok", _marked(marks("gpu1", _SUPERVISOR), marks("gpu2", *_RANKS))),
    Case("left-processes", "ok", scene(marks=marks("gpu2", process(811, "another", cluster="other")))),
    Case("left-processes", "not checked", _marked("", marks("gpu2", *_RANKS)), "did not report them"),
    Case("left-state", "warning", _OTHER_STATE, "cluster old, but no container"),
    Case("left-state", "ok", _OTHER_HOST),
    Case("left-state", "ok", _holds(running("old", "gpu2", "worker"), base=_OTHER_STATE)),
    Case("left-state", "ok", _OTHER_ENGINE),
    Case("left-state", "not checked", scene(marks=""), "cannot list the clusters"),
    Case(
        "left-state",
        "warning",
        _RENAMED,
        "still has a state directory for its former name node 2",
        fix=f"on gpu2: mv '{_STATE}/node 2/jobs'/* {_STATE}/gpu2/jobs/  # ",
    ),
    Case(
        "left-state",
        "warning",
        _NOT_YET,
        "former name node 2",
        fix="toolkit down --hosts COPY  # COPY: a copy of hosts.yaml without the keys main, slots, spares "
        "and services, in which hosts: lists only this host, with the name node 2. The command downloads the "
        "job records, then removes the cluster's state directory and containers",
    ),
    # The container uses the directory, and `toolkit down` would end its jobs.
    *(
        Case(
            "left-state",
            "warning",
            _holds(running("demo", "node 2", "worker"), base=there),
            "former name node 2",
            fix="toolkit up  # ",
        )
        for there in (_NOT_YET, _RENAMED)
    ),
    # Of another host with the same home, or with the name of another host of the file.
    Case("left-state", "ok", scene(marks=marks("gpu2", _FORMER.replace("10.77.0.3", "10.77.0.9")))),
    Case("left-state", "ok", scene(marks=marks("gpu2", _FORMER.replace("10.77.0.3", "")))),
    Case("left-state", "ok", scene(marks=marks("gpu2", _FORMER.replace("node 2", "cpu3")))),
    Case("cluster-version", "ok", _holds(running("demo", "gpu2", "worker", version=__version__))),
    Case("cluster-version", "ok", _of_version("0.0.9", __version__)),
    Case("cluster-version", "warning", _of_version("0.0.9", "0.0.9"), "toolkit 0.0.9", fix="toolkit up"),
    Case(
        "cluster-version", "warning", _of_version("99.0.0", __version__), "99.0.0", fix="use toolkit 99.0.0 "
    ),
)
