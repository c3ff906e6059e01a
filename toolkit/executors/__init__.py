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
    Run: ("commands", "run"),
    Upload: ("files", "upload"),
    WaitFor: ("commands", "wait"),
    SendImage: ("images", "send_image"),
    PullImage: ("images", "pull_image"),
    SendCode: ("code", "send_code"),
    StartJob: ("code", "start_job"),
    StartDaemons: ("code", "start_daemons"),
    SendData: ("data", "send_data"),
    RemoveData: ("data", "remove_data"),
    Fetch: ("transfers", "fetch"),
}


def executor_of(kind: type) -> Any:
    """Return the executor of a kind of step."""
    module, name = EXECUTORS[kind]
    return getattr(importlib.import_module(f"toolkit.executors.{module}"), name)
