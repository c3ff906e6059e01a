"""Messages about a log that cannot be followed to its end."""

from __future__ import annotations

import pytest

from toolkit.core.command import Result
from toolkit.errors import ToolkitError
from toolkit.jobs.logs import raise_if_failed


@pytest.mark.parametrize(
    ("stderr", "words"),
    [("[toolkit] there is no such log\n", "there is no such log"), ("", "probably with its container")],
)
def test_the_reason_is_never_empty(stderr: str, words: str) -> None:
    with pytest.raises(ToolkitError, match=words) as told:
        raise_if_failed(Result(137, "", stderr, 0.1), "the-job", "gpu1")
    assert told.value.host == "gpu1" and told.value.fix
