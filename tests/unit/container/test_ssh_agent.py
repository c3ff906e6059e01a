"""Tests of the commands that the ssh agent makes from a launcher's call."""

from __future__ import annotations

import pytest

from toolkit.container.job import ssh_agent as agent

SSH = ["ssh", "-F", "/run/toolkit/conf/ssh_config"]


def test_the_mark_goes_in_front_of_the_command() -> None:
    argv = agent.agent_args(["gpu2", "orted", "-mca", "ess", '"env"'], "j1")
    folder = agent.temporary_folder("j1")
    own = f"mkdir -p -m 700 {folder}; export TMPDIR={folder} TOOLKIT_JOB=j1"
    assert argv == [*SSH, "gpu2", f'{own}; orted -mca ess "env"']


@pytest.mark.parametrize(
    "options",
    [
        ["-x"],
        ["-p", "2222"],
        ["-p2222", "-q"],
        ["-o", "StrictHostKeyChecking=no", "-oPasswordAuthentication=no", "-l", "root"],
        ["-xnp", "22", "--"],
        ["-i", "/root/.ssh/id", "-F", "/dev/null"],
    ],
)
def test_the_launchers_ssh_options_do_not_win(options: list[str]) -> None:
    assert agent.agent_args([*options, "root@gpu2", "true"], "") == [*SSH, "gpu2", "true"]


def test_options_of_the_command_are_the_commands() -> None:
    argv = agent.agent_args(["gpu2", "ls", "-o", "x"], "")
    assert argv[-1] == "ls -o x"


@pytest.mark.parametrize("args", [[], ["gpu2"], ["-p", "1", "gpu2"]])
def test_a_call_without_a_command_is_refused(args: list[str]) -> None:
    with pytest.raises(ValueError, match="HOST COMMAND"):
        agent.agent_args(args, "j1")
