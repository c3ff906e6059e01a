"""One executor per kind of step; each returns "ok" when it changed something and "skipped" when not."""

from __future__ import annotations

from typing import Any

from toolkit.executors.code import send_code
from toolkit.executors.commands import run, wait
from toolkit.executors.data import remove_data, send_data
from toolkit.executors.files import upload
from toolkit.executors.images import pull_image, send_image
from toolkit.executors.transfers import fetch
from toolkit.plan.steps import (
    Fetch,
    PullImage,
    RemoveData,
    Run,
    SendCode,
    SendData,
    SendImage,
    Upload,
    WaitFor,
)

# Each is called with its step, the plan's Context and a function that takes progress in bytes.
EXECUTORS: dict[type, Any] = {
    Run: run,
    Upload: upload,
    WaitFor: wait,
    SendImage: send_image,
    PullImage: pull_image,
    SendCode: send_code,
    SendData: send_data,
    RemoveData: remove_data,
    Fetch: fetch,
}
