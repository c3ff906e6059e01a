"""The table of executors: one per kind of step. Each returns "ok" or "skipped" (no change).

``execute`` takes this table as an argument, so that the plan language does not depend on the features.
"""

from __future__ import annotations

from collections.abc import Mapping

from toolkit.plan.context import Advance, Context, Executor, Verdict
from toolkit.plan.executors import run, upload, wait
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

# Almost every plan needs the three executors above. The others import what they need when the first step of
# their kind runs: every command loads this table, and all of them together take about as long to import as
# everything else that `toolkit status` needs (Docker's SDK and tarfile are the largest parts).


def _send_image(step: SendImage, context: Context, advance: Advance) -> Verdict:
    from toolkit.image.send import send_image

    return send_image(step, context, advance)


def _pull_image(step: PullImage, context: Context, advance: Advance) -> Verdict:
    from toolkit.image.send import pull_image

    return pull_image(step, context, advance)


def _send_code(step: SendCode, context: Context, advance: Advance) -> Verdict:
    from toolkit.jobs.executors import send_code

    return send_code(step, context, advance)


def _start_job(step: StartJob, context: Context, advance: Advance) -> Verdict:
    from toolkit.jobs.executors import start_job

    return start_job(step, context, advance)


def _start_daemons(step: StartDaemons, context: Context, advance: Advance) -> Verdict:
    from toolkit.jobs.executors import start_daemons

    return start_daemons(step, context, advance)


def _send_data(step: SendData, context: Context, advance: Advance) -> Verdict:
    from toolkit.data.send import send_data

    return send_data(step, context, advance)


def _remove_data(step: RemoveData, context: Context, advance: Advance) -> Verdict:
    from toolkit.data.send import remove_data

    return remove_data(step, context, advance)


def _fetch(step: Fetch, context: Context, advance: Advance) -> Verdict:
    from toolkit.plan.fetch_files import fetch

    return fetch(step, context, advance)


EXECUTORS: Mapping[type, Executor] = {
    Run: run,
    Upload: upload,
    WaitFor: wait,
    SendImage: _send_image,
    PullImage: _pull_image,
    SendCode: _send_code,
    StartJob: _start_job,
    StartDaemons: _start_daemons,
    SendData: _send_data,
    RemoveData: _remove_data,
    Fetch: _fetch,
}
