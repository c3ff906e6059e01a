"""One executor per kind of step; each returns "ok" when it changed something and "skipped" when not."""

from __future__ import annotations

import importlib
from typing import Any

from toolkit.plan.steps import (
    Fetch,
    PullImage,
    RemoveData,
    Run,
    SendCode,
    SendData,
    SendImage,
    StartDaemons,
    StartJob,
    Upload,
    WaitFor,
)

# Each is called with its step, the plan's Context and a function that takes progress in bytes. By name,
# because a command needs two or three of them, and to import all takes as long as to connect to a host.
EXECUTORS: dict[type, tuple[str, str]] = {
    Run: ("plan.executors", "run"),
    Upload: ("plan.executors", "upload"),
    WaitFor: ("plan.executors", "wait"),
    SendImage: ("image.send", "send_image"),
    PullImage: ("image.send", "pull_image"),
    SendCode: ("jobs.send_code", "send_code"),
    StartJob: ("jobs.send_code", "start_job"),
    StartDaemons: ("jobs.send_code", "start_daemons"),
    SendData: ("data.send", "send_data"),
    RemoveData: ("data.send", "remove_data"),
    Fetch: ("plan.fetch_files", "fetch"),
}


def executor_of(kind: type) -> Any:
    """Return the executor of a kind of step."""
    module, name = EXECUTORS[kind]
    return getattr(importlib.import_module(f"toolkit.{module}"), name)
