"""The end of a job in words, with the fix of a known error."""

from __future__ import annotations

from toolkit.core.printable import without_color
from toolkit.diagnose.known_errors import match
from toolkit.jobs.status import JobStatus


def end_text(job: JobStatus) -> str:
    """Return the last lines of the rank that failed first, then one line with the cause of the job's end."""
    lines = []
    if job.last_lines and job.state == "failed":
        lines = ["  last lines of the rank that failed:", *(f"    {line}" for line in job.last_lines)]
    took = f" after {job.ended - job.started:.1f} s" if job.ended else ""
    error = job.error if lines else ""
    why = "".join(f": {part}" for part in (job.reason, error) if part)
    lines.append(f"job {job.id}: {job.state}{took}, exit code {job.exit_code}{why}")
    if error:
        lines += [f"  fix: {known.fix}" for known in match([error])]
    return without_color("\n".join(lines)) + "\n"
