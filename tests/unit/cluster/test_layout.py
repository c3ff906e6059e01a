"""The layout: what the hosts file and the hosts say together, and when that does not fit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.unit import cluster_world as world
from toolkit.cluster.containers import cluster_container
from toolkit.cluster.layout import Observed, make_layout
from toolkit.cluster.ports import free_port
from toolkit.core.container import Ulimit
from toolkit.core.facts import ContainerFacts, Facts
from toolkit.core.image import ImageFacts, missing_fix
from toolkit.errors import ImageError, NotReady
from toolkit.image.cuda import CPU_BUILD, CPU_IMAGE, CUDA_VARIANTS
from toolkit.lifecycle.up import image_steps
from toolkit.plan.steps import Run
from toolkit.protocol.names import LABEL_OWNER


def with_port(text: str = "") -> str:
    return world.HOSTS + text


def place(said: dict[str, Facts], text: str = world.HOSTS, local: ImageFacts | None = None) -> Any:
    return make_layout(world.inventory(text), Observed(said, local))


def test_slots_are_gpus_or_one_unless_declared() -> None:
    made = place(world.cluster_facts())
    assert [(p.name, p.role, p.slots, p.gpus) for p in made.places] == [
        ("gpu1", "main", 2, ("0", "1")),
        ("gpu2", "worker", 3, ()),
        ("cpu3", "worker", 1, ()),
    ]


def test_a_part_of_the_gpus_is_given_by_index() -> None:
    made = place(
        world.cluster_facts(), world.HOSTS.replace("address: 10.77.0.2", "{address: 10.77.0.2, gpus: 1}")
    )
    assert cluster_container(made, made.places[0]).gpus == "0"
    assert cluster_container(world.layout(), world.layout().places[0]).gpus == "all"


def test_root_on_one_host_and_a_user_on_the_other() -> None:
    said = world.cluster_facts()
    said["gpu1"] = replace(said["gpu1"], user="root", uid=0, gid=0, groups=((0, "root"),))
    made = place(said)
    assert made.user == "alice"
    container = cluster_container(made, made.places[0])
    assert (container.user, container.workdir) == ("0:0", "/root")
    assert place({n: replace(f, user="root", uid=0) for n, f in said.items()}).user == "root"


def test_sshd_as_root_gets_what_it_needs_and_main_nothing() -> None:
    said = {n: replace(f, user="root", uid=0) for n, f in world.cluster_facts().items()}
    made = place(said)
    caps = {p.name: cluster_container(made, p).cap_add for p in made.places}
    assert caps == {"gpu1": (), **dict.fromkeys(("gpu2", "cpu3"), ("SETGID", "SETUID", "SYS_CHROOT"))}
    # Images with Debian's sshd lack this folder, and sshd as root does not start without it.
    mounts = {p.name: {m.target for m in cluster_container(made, p).mounts} for p in made.places}
    assert [name for name, targets in mounts.items() if "/run/sshd" in targets] == ["gpu2", "cpu3"]


def busy(
    host: str, *listeners: tuple[str, int], containers: tuple[ContainerFacts, ...] = ()
) -> dict[str, Facts]:
    said = world.cluster_facts()
    said[host] = replace(said[host], listening=listeners, containers=containers)
    return said


@pytest.mark.parametrize(
    ("listener", "port"),
    [
        (("10.77.0.3", 12345), 12346),
        (("0.0.0.0", 12345), 12346),
        (("::", 12345), 12346),
        (("127.0.0.1", 12345), 12345),  # another address: sshd listens on the data address alone
        (("10.77.0.3", 12346), 12345),
    ],
)
def test_the_port_moves_when_it_is_busy(listener: tuple[str, int], port: int) -> None:
    assert place(busy("gpu2", listener)).port == port


def test_main_needs_no_port() -> None:
    assert place(busy("gpu1", ("0.0.0.0", 12345))).port == 12345


def test_a_port_of_the_file_never_moves() -> None:
    text = with_port("worker_port: 12345\n")
    assert place(world.cluster_facts(), text).port == 12345
    with pytest.raises(NotReady, match=r"port 12345 on 10\.77\.0\.3 is held by another program") as caught:
        place(busy("gpu2", ("0.0.0.0", 12345)), text)
    assert caught.value.host == "gpu2"
    theirs = replace(world.running("prod", "gpu2", "worker", port="12345"), name="toolkit-prod-worker")
    with pytest.raises(
        NotReady, match=r"held by cluster prod of user alice \(container toolkit-prod-worker\)"
    ):
        place(busy("gpu2", ("10.77.0.3", 12345), containers=(theirs,)), text)


def test_our_own_sshd_does_not_make_the_port_busy() -> None:
    own = world.running("demo", "gpu2", "worker", port="12345")
    assert place(busy("gpu2", ("10.77.0.3", 12345), containers=(own,))).port == 12345
    moved = world.running("demo", "gpu2", "worker", port="12347")
    # A host that comes back joins the others where they are, although 12345 is free.
    assert place(busy("gpu2", ("10.77.0.3", 12347), containers=(moved,))).port == 12347
    paused = replace(own, state="paused")
    assert place(busy("gpu2", ("10.77.0.3", 12345), containers=(paused,))).port == 12345
    dead = replace(own, state="exited")
    assert place(busy("gpu2", ("10.77.0.3", 12345), containers=(dead,))).port == 12346


def test_no_single_host_moves_the_port_of_the_others() -> None:
    text = world.HOSTS.replace("mounts:", "  cpu4:\n    address: 10.77.0.5\nmounts:")
    said = {**world.cluster_facts(), "cpu4": world.facts("cpu4", "10.77.0.5", "ens5")}
    ports = {"gpu2": "12346", "cpu3": "1024", "cpu4": "12346"}
    for host, port in ports.items():
        own = world.running("demo", host, "worker", port=port)
        said[host] = replace(said[host], containers=(own,), listening=((said[host].ssh_address, int(port)),))
    assert place(said, text).port == 12346
    for label in ("", "x", "-1", "0", "70000", "1 2", "²"):
        said["cpu3"] = replace(
            said["cpu3"], containers=(world.running("demo", "cpu3", "worker", port=label),)
        )
        assert place(said, text).port == 12346


def test_master_port_is_the_first_that_is_free_there() -> None:
    said = world.facts(listening=(("0.0.0.0", 29500), ("10.77.0.2", 29501), ("127.0.0.1", 29502)))
    assert free_port(29500, said, "10.77.0.2") == 29502


def test_a_cluster_of_that_name_of_somebody_else() -> None:
    said = world.cluster_facts()
    theirs = world.running("demo", "gpu2", "worker")
    theirs = replace(theirs, labels={**theirs.labels, LABEL_OWNER: "bob\ngpu1: ready"})
    said["gpu2"] = replace(said["gpu2"], containers=(theirs,))
    with pytest.raises(NotReady, match=r"of user bob\\ngpu1: ready already exists") as caught:
        place(said)
    assert caught.value.host == "gpu2"


def test_an_image_for_other_processors_is_refused_before_anything_is_sent() -> None:
    said = world.cluster_facts()
    made_for = replace(world.IMAGE, arch="amd64")
    assert place(said, local=made_for).image == made_for
    said["gpu2"], said["cpu3"] = (replace(said[n], arch="aarch64") for n in ("gpu2", "cpu3"))
    with pytest.raises(ImageError, match="is for amd64, but gpu2 is arm64, cpu3 is arm64") as caught:
        place(said, local=made_for)
    assert caught.value.host == "gpu2" and "hosts of one architecture, and set image:" in caught.value.fix
    assert place(
        {n: replace(f, arch="aarch64") for n, f in said.items()}, local=replace(made_for, arch="arm64")
    )


def test_limits_of_the_file_win_over_the_default_of_rdma() -> None:
    def limits(text: str) -> dict[str, tuple[Ulimit, ...]]:
        made = place(world.cluster_facts(), world.HOSTS + text)
        return {p.name: cluster_container(made, p).ulimits for p in made.places}

    free = Ulimit("memlock", -1, -1)
    assert limits("") == {"gpu1": (), "gpu2": (free,), "cpu3": ()}
    files, locked = Ulimit("nofile", 4096, 4096), Ulimit("memlock", 65536, 1048576)
    found = limits("ulimits: {nofile: 4096, memlock: {soft: 65536, hard: 1048576}}\n")
    assert set(found.values()) == {(locked, files)}


def test_labels_of_the_file_stand_beside_our_own() -> None:
    made = place(world.cluster_facts(), world.HOSTS + "labels: {purpose: tests, com.example.team: a b}\n")
    labels = dict(cluster_container(made, made.places[0]).labels)
    assert (labels["purpose"], labels["com.example.team"]) == ("tests", "a b")
    plain = cluster_container(world.layout(), world.layout().places[0])
    assert set(labels) - set(dict(plain.labels)) == {"purpose", "com.example.team"}
    assert plain.digest() != cluster_container(made, made.places[0]).digest()


OTHER = replace(world.IMAGE, id="sha256:" + "2" * 64, identity="f" * 16)


def test_which_image_is_meant() -> None:
    said = world.cluster_facts()
    assert place(said).image.identity == world.IMAGE.identity
    # This machine's word counts, whatever the hosts hold.
    assert place(said, local=OTHER).image == OTHER
    with pytest.raises(ImageError, match="gpu1 has 0123456789abcdef, gpu2 has ffffffffffffffff"):
        place({**said, "gpu2": replace(said["gpu2"], images=(OTHER,))})
    with pytest.raises(ImageError, match="neither your machine nor any host"):
        place({n: replace(f, images=()) for n, f in said.items()})
    late = "the engine gave no answer within 30 s to docker info"
    with pytest.raises(ImageError, match=f"no host that answered has the image toolkit:cpu, and {late}"):
        nowhere = Observed({n: replace(f, images=()) for n, f in said.items()}, local_silence=late)
        make_layout(world.inventory(), nowhere)
    # An image of another name does not count, be it the right one.
    with pytest.raises(ImageError, match="neither"):
        place({n: replace(f, images=(replace(OTHER, tags=("x:1",)),)) for n, f in said.items()})


def test_the_same_image_on_another_store_does_not_travel() -> None:
    said = world.cluster_facts()
    same = replace(world.IMAGE, id="sha256:" + "9" * 64, tags=("toolkit:cpu",), size=1)
    said["cpu3"] = replace(said["cpu3"], images=(same,))
    made = place(said)
    steps = image_steps(made, made.places[2])
    assert [type(s) for s in steps] == [Run]


def test_the_fix_of_a_missing_image_provides_this_image() -> None:
    """Without --flavor, the build chooses by the user's own machine, which often has no GPU."""
    known = [(CPU_IMAGE, CPU_BUILD), *((one.image, one.build) for one in CUDA_VARIANTS)]
    for image, build in known:
        other = "or set image: in hosts.yaml to an image that your machine has"
        assert missing_fix(image) == f"{build}  # {other}"
    assert missing_fix("toolkit:mine").startswith("toolkit image build --tag toolkit:mine  #")
    assert missing_fix("lab/train:v3").startswith("docker pull lab/train:v3  #")
