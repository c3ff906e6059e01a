"""A job's own copy of the code on two real hosts, and its results brought back."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.world import Toolkit, sh

pytestmark = pytest.mark.lab


@pytest.fixture
def up(standing: Toolkit) -> Toolkit:
    """The cluster of two hosts, which no test of this file changes."""
    return standing


JOBS = "/home/trainer/.local/state/toolkit/two/*/jobs"
# Says what it finds, spoils its own code, leaves results; the first job waits for the edit in between.
WRITE = """
until [ -e go ]; do sleep 0.1; done
echo "$(cat word) $(readlink link) $(test -x tool && echo runs) $(ls old 2>/dev/null)" >said
mkdir -p out/deep; hostname >out/deep/who; ln -s deep/who out/last
echo spoiled >word; echo spoiled >>lib/a; rm -f link
"""


def test_each_job_has_its_own_copy_and_its_results_come_back(up: Toolkit, tmp_path: Path) -> None:
    code = tmp_path / "code"
    (code / "lib").mkdir(parents=True)
    for name, text in {"word": "first", "old": "o", "lib/a": "a", "tool": "#!/bin/sh\n", "go": ""}.items():
        (code / name).write_text(text)
    (code / "link").symlink_to("lib/a")
    (code / "tool").chmod(0o755)
    toolkit = Toolkit(up.hosts, tmp_path)
    words = ("--launcher", "mpirun", "--workdir", "code", "--", "sh", "-c", WRITE)
    (code / "go").unlink()
    first = toolkit.run("run", "-d", "--json", *words, check=True).json["job"]
    (code / "word").write_text("second")
    (code / "old").unlink()
    (code / "tool").chmod(0o644)
    (code / "go").write_text("")
    for host in ("box1", "box2"):
        sh(host, f"su trainer -c 'cd {JOBS}/{first}/code && touch go'")
    assert toolkit.run("wait", first).status == 0
    second = toolkit.run("run", "--json", *words, check=True).json["job"]
    for job, said in ((first, "first lib/a runs old"), (second, "second lib/a")):
        for host in ("box1", "box2"):
            assert sh(host, f"cat {JOBS}/{job}/code/said").split() == said.split(), (job, host)
    # Another run of the same code, which both jobs have spoiled in their own copies.
    (code / "word").write_text("first")
    done = toolkit.run(
        "run", "--launcher", "mpirun", "--workdir", "code", "--", "cat", "word", "lib/a", check=True
    )
    assert done.out.count("firsta") == 2 and "spoiled" not in done.out

    got = toolkit.run("get", "out", "said", "--job", second, "--all-hosts", "-o", "got", "--json", check=True)
    assert [(row["host"], row["files"]) for row in got.json["hosts"]] == [("box1", 3), ("box2", 3)]
    for host in ("box1", "box2"):
        assert (tmp_path / "got" / host / "out" / "last").resolve().parent.name == "deep"
        assert (tmp_path / "got" / host / "said").read_text().split() == ["second", "lib/a"]
    again = toolkit.run(
        "get", "out", "--job", second, "--host", "box2", "-o", "got/box2", "--json", check=True
    )
    assert [(row["files"], row["there"]) for row in again.json["hosts"]] == [(0, 2)]
    # Without -o: a folder that is not sent with the next job.
    default = toolkit.run("get", "out", "--job", second, "--json", check=True)
    assert [(row["into"], row["files"]) for row in default.json["hosts"]] == [(f"runs/{second}", 2)]
    assert (tmp_path / "runs" / second / "out" / "last").resolve().parent.name == "deep"
    inside = toolkit.run("run", "--launcher", "mpirun", "--", "sh", "-c", "ls -a", check=True)
    assert "code" in inside.out and "runs" not in inside.out
    lost = toolkit.run("get", "outt")
    assert lost.status == 1 and "has no file outt; the working directory of the job contains: " in lost.err


def test_little_travels_for_a_small_change(up: Toolkit, tmp_path: Path) -> None:
    code = tmp_path / "many"
    code.mkdir()
    for number in range(2000):
        (code / f"file{number}.py").write_text(f"{number}" * 100)
    toolkit = Toolkit(up.hosts, tmp_path)
    words = ("run", "-v", "--launcher", "mpirun", "--workdir", "many", "--", "true")

    def traffic() -> list[int]:
        count = "awk '/:/ && !/lo:|docker|br-|veth/ { sub(/.*:/, \"\"); print $1 }' /proc/net/dev"
        return [sum(map(int, sh(host, count).split())) for host in ("box1", "box2")]

    toolkit.run(*words, check=True)
    (code / "file7.py").write_text("x" * 5000)
    before = traffic()
    done = toolkit.run(*words, check=True)
    came = [now - then for now, then in zip(traffic(), before, strict=True)]
    assert done.err.count("5.0 kB of ") == 2
    # The whole of `run` is in this: connecting, the probe, the job file, the launcher's own talk.
    assert max(came) < 5000 + 2**18, came
