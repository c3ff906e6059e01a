"""Tests of the Dockerfiles and their folder: one structure for both, reasons, no site-specific value."""

from __future__ import annotations

import itertools
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from toolkit.checks.gpu_setup import satisfied
from toolkit.image.build_plan import (
    CONTEXT_FILES,
    DEBIANS_OPENMPI,
    EXTRAS,
    FLAVOURS,
    SOURCE_FILES,
    Extra,
    Flavor,
    ImageRecipe,
    arguments_of,
    extra_pins,
    parse_arguments,
)
from toolkit.image.build_values import CONTEXT_FOLDERS
from toolkit.image.cuda import CUDA_VARIANTS, CudaVariant
from toolkit.image.lock import LOCK_FILE, parse_lock
from toolkit.image.wheelhouse import parse_pins

ROOT = Path(__file__).resolve().parents[3]
DOCKERFILES = {flavor: (ROOT / f"Dockerfile.{flavor}").read_text() for flavor in FLAVOURS}
REMOTE = "SSH_COMMAND_PREFIX = 'ssh -o PasswordAuthentication=no -o StrictHostKeyChecking=no'\n"


def stages(text: str) -> list[str]:
    return re.findall(r"^FROM .* AS (\w+)$", text, re.MULTILINE)


def stage(text: str, name: str) -> str:
    """The lines from one FROM to the next, without comments."""
    body = re.split(r"^FROM ", text, flags=re.MULTILINE)
    part = next(p for p in body[1:] if p.splitlines()[0].endswith(f" AS {name}"))
    return "\n".join(line for line in part.splitlines() if line and not line.startswith("#"))


def test_both_have_the_same_stages() -> None:
    assert (
        stages(DOCKERFILES["cpu"])
        == stages(DOCKERFILES["gpu"])
        == ["tools", "builder", "horovod", "more", "libraries", "runtime"]
    )


def test_both_have_the_same_argument_names_in_the_same_stages() -> None:
    same = (
        DOCKERFILES["gpu"].replace("ARG TOOLKIT_NCCL=", "# ").replace("ARG TOOLKIT_NCCL", "ARG NCCL_VERSION")
    )
    cpu, gpu = (re.findall(r"^(?:ARG (\w+)|FROM )", t, re.MULTILINE) for t in (DOCKERFILES["cpu"], same))
    assert cpu == gpu


def test_the_nccl_version_is_not_that_of_the_base_image() -> None:
    """ENV of the base image overrides an ARG of the same name in every stage."""
    head, *rest = re.split(r"^FROM ", DOCKERFILES["gpu"], flags=re.MULTILINE)
    assert "\nARG TOOLKIT_NCCL=${NCCL_VERSION}\n" in head
    assert not any("\nARG NCCL_VERSION\n" in each for each in rest)
    builder = stage(DOCKERFILES["gpu"], "builder")
    install = builder.partition("\nARG TOOLKIT_NCCL\n")[2]
    assert 'export NCCL_VERSION="${TOOLKIT_NCCL}"; \\\n    pip install' in install
    assert 'ARG TOOLKIT_NCCL\nENV NCCL_VERSION="${TOOLKIT_NCCL}"\n' in stage(DOCKERFILES["gpu"], "runtime")
    assert "TOOLKIT_NCCL" not in parse_arguments(DOCKERFILES["gpu"])


@pytest.mark.parametrize("flavor", DOCKERFILES)
def test_the_python_version_is_not_that_of_the_base_image(flavor: str) -> None:
    """The images ``python`` set PYTHON_VERSION to a version such as 3.11.9."""
    head, *rest = re.split(r"^FROM ", DOCKERFILES[flavor], flags=re.MULTILINE)
    assert "\nARG TOOLKIT_PYTHON=${PYTHON_VERSION}\n" in head
    assert not any("PYTHON_VERSION}" in each or "ARG PYTHON_VERSION" in each for each in rest)


def test_both_pin_the_same_versions_of_what_both_hold() -> None:
    cpu, gpu = (parse_arguments(text) for text in DOCKERFILES.values())
    of_gpus = ("CUDA_", "NCCL_")
    assert {n: v for n, v in cpu.items() if not n.startswith(of_gpus)} == {
        n: v for n, v in gpu.items() if not n.startswith(of_gpus)
    }


def test_the_tools_stage_is_one_and_the_same_so_that_its_layers_are_shared() -> None:
    assert stage(DOCKERFILES["cpu"], "tools") == stage(DOCKERFILES["gpu"], "tools")


@pytest.mark.parametrize("flavor", FLAVOURS)
def test_every_argument_with_a_default_has_its_reason_above_it(flavor: Flavor) -> None:
    lines = DOCKERFILES[flavor].splitlines()
    for before, line in itertools.pairwise(lines):
        if re.match(r"ARG \w+=", line):
            assert before.startswith("# "), line


@pytest.mark.parametrize("flavor", FLAVOURS)
def test_the_legacy_builder_knows_every_word(flavor: Flavor) -> None:
    text = DOCKERFILES[flavor]
    assert not re.search(r"^RUN --|<<|^COPY .*--ch(mod|own)|^#\s*syntax", text, re.MULTILINE)
    # An empty ARG before FROM would be no version at all.
    assert parse_arguments(text)["BASE_IMAGE"] == "debian:bookworm-slim"


@pytest.mark.parametrize("flavor", FLAVOURS)
def test_the_last_stage_has_compilers_but_not_cudas_and_checks_what_it_holds(flavor: Flavor) -> None:
    runtime = stage(DOCKERFILES[flavor], "runtime")
    installed = re.findall(r"apt-get install -y --no-install-recommends ([^;]*)", runtime)
    verbs = ["libibverbs1", "librdmacm1", "ibverbs-providers"]
    packages = [each.replace("\\\n", " ").split() for each in installed]
    assert packages == [["gcc", "g++", "libc6-dev", "libpython3-dev", *verbs], ["openmpi-bin"]]
    assert "for library in libibverbs.so.1 librdmacm.so.1; do" in runtime
    compilers = re.search(r"for compiler in ([^;]*);", runtime)
    assert compilers is not None and compilers[1].split() == ["cc", "c++", "gcc", "g++"]
    assert "if ! command -v" in runtime and "Python.h is missing" in runtime
    assert "if find / -xdev -type f -name nvcc | grep ." in runtime
    parts = re.search(r"for part in ([^;]*);", runtime)
    assert parts is not None
    wanted = {"PyTorch", "MPI", "Gloo"} | ({"NCCL"} if flavor == "gpu" else set())
    assert set(parts[1].split()) == {*wanted, "$wants"}
    assert "horovodrun --check-build" in runtime
    assert f"toolkit.flavor={flavor}" in runtime


def test_the_layer_of_the_compilers_is_one_and_the_same_so_that_it_is_shared() -> None:
    cpu, gpu = (
        re.split(r"^(?:ARG|COPY) ", stage(text, "runtime"), flags=re.M)[0] for text in DOCKERFILES.values()
    )
    assert cpu == gpu and "apt-get install" in cpu


@pytest.mark.parametrize("flavor", FLAVOURS)
def test_eager_operators_need_no_compiler_and_the_reason_is_given(flavor: Flavor) -> None:
    lines = DOCKERFILES[flavor].splitlines()
    at = lines.index("ENV TORCH_DISABLE_NATIVE_JIT=1")
    assert "pytorch/pytorch#196977" in " ".join(lines[at - 3 : at])


def test_host_keys_go_in_the_step_that_makes_them() -> None:
    steps = re.split(r"\n(?=[A-Z]+ )", stage(DOCKERFILES["cpu"], "tools"))
    (step,) = [s for s in steps if "openssh-server" in s]
    assert "rm -rf" in step and "/etc/ssh/ssh_host_*" in step


def install_tools(folder: Path, name: str, certificate: str) -> tuple[list[str], Path]:
    """Run the step of the stage `tools` with all paths below a folder; return the calls of apt-get and
    update-ca-certificates, and the file of the certificate."""
    step = stage((ROOT / name).read_text(), "tools").partition("\nRUN ")[2]
    assert step.rstrip().endswith("id sshd")
    script = re.sub(r"(?<![\w$}])/(usr|var|etc|run)/", rf"{folder}/\1/", step)
    for path in ("usr/local/share/ca-certificates/site.crt", "etc/ssh/ssh_config.d/10-toolkit.conf"):
        (folder / path).parent.mkdir(parents=True)
        (folder / path).write_text(certificate)
        (folder / path).chmod(0o600)
    for program in ("apt-get", "update-ca-certificates", "id", "ssh", "ip", "rsync", "sshd"):
        stub = folder / "usr/sbin" / program
        stub.parent.mkdir(exist_ok=True)
        stub.write_text(f'#!/bin/sh\necho "{program} $*" >> {folder}/calls\n')
        stub.chmod(0o755)
    environ = {"PATH": f"{folder}/usr/sbin:/usr/bin:/bin"}
    subprocess.run(["sh", "-c", script], env=environ, check=True, capture_output=True)
    calls = (folder / "calls").read_text().splitlines()
    wanted = [call for call in calls if call.startswith(("apt-get", "update-ca"))]
    return wanted, folder / "usr/local/share/ca-certificates/site.crt"


@pytest.mark.parametrize("name", ["Dockerfile.cpu", "Dockerfile.gpu", "Dockerfile.onto"])
def test_a_base_image_that_has_ca_certificates_trusts_the_certificate_too(name: str, tmp_path: Path) -> None:
    """apt-get changes nothing if the base image has the package already."""
    calls, file = install_tools(tmp_path, name, "CA")
    update, install, *others = calls
    trust = f"apt-get -o Acquire::https::CaInfo={file}"
    assert update == f"{trust} update" and install.startswith(f"{trust} install ")
    assert "ca-certificates" in install.split()
    assert others == ["update-ca-certificates ", "apt-get clean"]
    # apt-get reads the file as another user.
    assert file.stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize("name", ["Dockerfile.cpu", "Dockerfile.gpu", "Dockerfile.onto"])
def test_without_a_certificate_the_certificates_of_the_base_image_stay(name: str, tmp_path: Path) -> None:
    calls, _ = install_tools(tmp_path, name, "")
    assert [call.split()[:2] for call in calls] == [["apt-get", w] for w in ("update", "install", "clean")]
    assert (" ca-certificates" in calls[1]) is (name != "Dockerfile.onto")


@pytest.mark.parametrize("flavor", FLAVOURS)
def test_every_copied_file_is_in_the_context(flavor: Flavor) -> None:
    for line in re.findall(r"^COPY (?!--from)(.*)$", DOCKERFILES[flavor], re.MULTILINE):
        for source in line.split()[:-1]:
            pattern = re.escape(source).replace(r"\*", "[^/]*")
            folders = {f"{name}/" for name in CONTEXT_FOLDERS}
            named = any(re.match(pattern, f) for f in CONTEXT_FILES)
            assert source in folders or named


def test_context_files_exist() -> None:
    assert [name for name in SOURCE_FILES if not (ROOT / name).is_file()] == []


@pytest.mark.parametrize("flavor", FLAVOURS)
def test_every_requirement_is_an_exact_pin(flavor: Flavor) -> None:
    arguments = parse_arguments(DOCKERFILES[flavor])
    names = ["requirements.txt", f"requirements-{flavor}.txt"]
    names += ["requirements-gpu-build.txt"] if flavor == "gpu" else []
    pins = [p for name in names for p in parse_pins((ROOT / "image" / name).read_text(), arguments)]
    assert len({pin.name for pin in pins}) == len(pins)
    (torch,) = [pin.line for pin in pins if pin.name == "torch"]
    assert torch == ("torch==2.13.0+cpu" if flavor == "cpu" else "torch===2.13.0")


@pytest.mark.parametrize("extra", EXTRAS.values(), ids=str)
def test_what_can_be_added_is_a_closed_list_that_holds_to_what_the_image_has(extra: Extra) -> None:
    arguments = parse_arguments(DOCKERFILES["cpu"])
    base = {pin.key: pin for pin in parse_pins((ROOT / "image/requirements.txt").read_text(), arguments)}
    pins = parse_pins((ROOT / extra.file).read_text(), arguments)
    keys = [pin.key for pin in pins]
    assert len(set(keys)) == len(keys) and not set(keys) & {*base, "torch"}
    assert extra.source or extra.name in {key.removesuffix("-cpu") for key in keys}
    if extra.source:
        assert {f"{extra.source.upper()}_VERSION", f"{extra.source.upper()}_SHA256"} <= set(arguments)


@pytest.mark.parametrize("flavor", FLAVOURS)
def test_all_that_can_be_added_goes_together(flavor: Flavor) -> None:
    names = [name for name, extra in EXTRAS.items() if flavor in extra.flavors]
    sources = {extra.file: (ROOT / extra.file).read_text() for extra in EXTRAS.values()}
    assert set(extra_pins(names, sources, parse_arguments(DOCKERFILES[flavor]))) == set(names)


def test_the_only_addresses_named_are_public_ones() -> None:
    texts = [*DOCKERFILES.values(), *((ROOT / name).read_text() for name in CONTEXT_FILES)]
    texts += [(ROOT / "image/base.sh").read_text(), (ROOT / "toolkit/image/wheelhouse.py").read_text()]
    hosts = {host for text in texts for host in re.findall(r"https?://([^/\s\"']+)", text)}
    assert hosts <= {"deb.debian.org", "download.pytorch.org", "peps.python.org"}
    assert not any(re.search(r"/opt/(?!venv|horovod|more)|/root/", text) for text in texts)


# Headers that GCC 13 and 14 require in files of Horovod.
HEADERS = {"group_table": "string", "common": "stdexcept", "nvtx_op_range": "cstdint"}


def horovod_tree(folder: Path) -> Path:
    for name, text in {
        "CMakeLists.txt": "set(CMAKE_CXX_STANDARD 14)\n",
        "horovod/torch/CMakeLists.txt": "    set(CMAKE_CXX_STANDARD 14)\n",
        "horovod/tensorflow/CMakeLists.txt": "list(APPEND a.cc)\nlist(APPEND xla_mpi_ops.cc)\n",
        "setup.py": "'Debug' if debug else 'RelWithDebInfo'\n",
        "horovod/runner/util/remote.py": REMOTE,
        **dict.fromkeys((f"horovod/common/{name}.h" for name in HEADERS), "#include <mutex>\n"),
        "third_party/flatbuffers/include/flatbuffers/stl_emulation.h": "    count_ = other.count_;\n",
    }.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def edit(folder: Path) -> subprocess.CompletedProcess[str]:
    script = ROOT / "image/edit-horovod.sh"
    argv = ["sh", str(script), str(folder), "20"]
    return subprocess.run(argv, capture_output=True, text=True, check=False)


def test_the_edits_of_horovod_apply(tmp_path: Path) -> None:
    done = edit(horovod_tree(tmp_path))
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "horovod/torch/CMakeLists.txt").read_text() == "    set(CMAKE_CXX_STANDARD 20)\n"
    assert (tmp_path / "setup.py").read_text() == "'Debug' if debug else 'Release'\n"
    assert (tmp_path / "horovod/tensorflow/CMakeLists.txt").read_text() == "list(APPEND a.cc)\n"
    assert "StrictHostKeyChecking=yes" in (tmp_path / "horovod/runner/util/remote.py").read_text()
    for name, header in HEADERS.items():
        text = (tmp_path / f"horovod/common/{name}.h").read_text()
        assert text == f"#include <{header}>\n#include <mutex>\n"


@pytest.mark.parametrize(
    "name",
    [
        "CMakeLists.txt",
        "horovod/torch/CMakeLists.txt",
        "horovod/tensorflow/CMakeLists.txt",
        "setup.py",
        "horovod/runner/util/remote.py",
        "third_party/flatbuffers/include/flatbuffers/stl_emulation.h",
    ],
)
def test_an_edit_that_no_longer_applies_fails_and_names_the_file(tmp_path: Path, name: str) -> None:
    (horovod_tree(tmp_path) / name).write_text("something else\n")
    done = edit(tmp_path)
    assert done.returncode != 0
    assert name in done.stderr and "this edit no longer applies" in done.stderr


def test_another_place_that_turns_host_key_checking_off_fails_the_edit(tmp_path: Path) -> None:
    (horovod_tree(tmp_path) / "horovod/other.py").write_text("'-o', 'StrictHostKeyChecking no'\n")
    done = edit(tmp_path)
    assert done.returncode != 0
    assert "another file of Horovod" in done.stderr


PLAIN_CODE = "  10f0:  vfmadd231ps (%rax),%ymm15,%ymm1\n"
BUILDERS = "    CPU_ARCH = self.cpu_arch()\n    SIMD_WIDTH = self.simd_width()\n"
# Replaces pip: keeps the edited source, and installs what DeepSpeed's own setup.py would.
PIP = """\
for last; do :; done
site=@/opt/more/lib/python3.11/site-packages/deepspeed info=git_version_info_installed.py
mkdir -p $site/ops/adam $site/ops/comm
cp -r "$last" @/seen
echo "$TORCH_CUDA_ARCH_LIST" > @/archs
echo "accelerator_name='${ACCELERATOR:-$DS_ACCELERATOR}'" > $site/$info
ops="'cpu_adam': ${DS_BUILD_CPU_ADAM:-0}, 'deepspeed_shm_comm': ${DS_BUILD_SHM_COMM:-0}"
ops="$ops, 'fused_adam': ${DS_BUILD_FUSED_ADAM:-0}, 'utils': ${DS_BUILD_UTILS:-0}"
echo "installed_ops={'async_io': False, $ops, $MORE}" >> $site/$info
for name in fused_adam cpu_adam; do
    echo "$CODE" > "$site/ops/adam/${name}_op.cpython-311-x86_64-linux-gnu.so"
done
echo "vaddps %zmm0,%zmm1,%zmm2" > $site/ops/comm/deepspeed_shm_comm_op.cpython-311-x86_64-linux-gnu.so
"""


def build_deepspeed(
    folder: Path, environ: dict[str, str], machine: str = "x86_64", lost: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run build-deepspeed.sh on a source without the file ``lost``, with stubs of pip and of the programs
    that read binary files."""
    source = folder / "deepspeed-0.19.8"
    texts = {
        "setup.py": "    install_requires.append('nvidia-ml-py')\n",
        "op_builder/cpu/builder.py": BUILDERS,
    }
    for name, text in texts.items():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text("" if name == lost else text)
    wheels, programs = folder / "wheels", folder / "bin"
    wheels.mkdir()
    archive = wheels / f"{source.name}.tar.gz"
    subprocess.run(["tar", "-C", str(folder), "-czf", str(archive), source.name], check=True)
    programs.mkdir()
    stubs = {"pip": PIP, "sha256sum": "", "strip": "", "objdump": 'cat "$2"', "uname": f"echo {machine}"}
    for name, text in stubs.items():
        (programs / name).write_text(f"#!/bin/sh\n{text.replace('@', str(folder))}\n")
        (programs / name).chmod(0o755)
    script = (ROOT / "image/build-deepspeed.sh").read_text()
    script = re.sub(r"(?<![\w.])/(src|opt/more)", rf"{folder}/\1", script)
    return subprocess.run(
        ["sh", "-c", script, "build-deepspeed", str(wheels)],
        env={
            **{"PATH": f"{programs}:/usr/bin:/bin", "DEEPSPEED_VERSION": "0.19.8", "DEEPSPEED_SHA256": "ab"},
            **{"MORE": "", "CODE": PLAIN_CODE, **environ},
        },
        capture_output=True,
        text=True,
        check=False,
    )


# nvcc writes such a text into the machine code for each architecture.
CUBINS = "".join(f"\x01-arch sm_{arch} -m 64 \x01" for arch in (120, 75, 90, 75))
ON_GPUS = {"CUDA_HOME": "/cuda", "CUDA_ARCHS": "75,90,120", "CODE": CUBINS}


@pytest.mark.parametrize(
    ("environ", "has", "archs"),
    [
        ({}, "cpu cpu_adam deepspeed_shm_comm fused_adam", ""),
        (ON_GPUS, "cuda cpu_adam fused_adam utils", "7.5;9.0;12.0"),
    ],
    ids=FLAVOURS,
)
def test_the_operators_of_deepspeed_are_those_of_the_flavor(
    tmp_path: Path, environ: dict[str, str], has: str, archs: str
) -> None:
    done = build_deepspeed(tmp_path, environ)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == f"DeepSpeed has {has}"
    assert (tmp_path / "archs").read_text().strip() == archs


@pytest.mark.parametrize(
    ("machine", "arch", "simd"), [("x86_64", "-march=x86-64-v3", "AVX256"), ("aarch64", "", "NEON")]
)
def test_the_operators_do_not_depend_on_the_processor_of_the_building_machine(
    tmp_path: Path, machine: str, arch: str, simd: str
) -> None:
    done = build_deepspeed(tmp_path, {}, machine)
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "seen/op_builder/cpu/builder.py").read_text()
    assert text == f"    CPU_ARCH = '{arch}'\n    SIMD_WIDTH = '-D__{simd}__'\n"
    assert "nvidia-ml-py" not in (tmp_path / "seen/setup.py").read_text()


@pytest.mark.parametrize(
    ("environ", "why"),
    [
        # As without DS_ACCELERATOR: a building machine has no GPU.
        (
            {**ON_GPUS, "ACCELERATOR": "cpu"},
            "built with 'cpu cpu_adam fused_adam utils', expected 'cuda cpu_adam",
        ),
        ({**ON_GPUS, "MORE": "'utils': False"}, "built with 'cuda cpu_adam fused_adam', expected"),
        ({**ON_GPUS, "CUDA_ARCHS": "75,80,90,120"}, "architectures '75,90,120', expected '75,80,90,120'"),
        ({**ON_GPUS, "CODE": PLAIN_CODE}, "architectures '', expected '75,90,120'"),
        ({"CODE": "  1130:  vaddps %zmm0,%zmm1,%zmm2"}, "contains instructions beyond x86-64-v3"),
        ({"CODE": "  1130:  vaddps %ymm16,%ymm1,%ymm2"}, "contains instructions beyond x86-64-v3"),
        ({"CODE": "  1130:  vcmpltps %ymm0,%ymm1,%k1"}, "contains instructions beyond x86-64-v3"),
    ],
)
def test_other_operators_of_deepspeed_fail_the_build(
    tmp_path: Path, environ: dict[str, str], why: str
) -> None:
    done = build_deepspeed(tmp_path, environ)
    assert done.returncode != 0 and why in done.stderr


@pytest.mark.parametrize("name", ["setup.py", "op_builder/cpu/builder.py"])
def test_an_edit_of_deepspeed_that_no_longer_applies_fails_and_names_the_file(
    tmp_path: Path, name: str
) -> None:
    done = build_deepspeed(tmp_path, {}, lost=name)
    assert done.returncode != 0 and f"is not in {name}: this edit no longer applies" in done.stderr


@pytest.mark.parametrize("flavor", FLAVOURS)
def test_deepspeed_is_compiled_for_the_gpus_of_the_variant(flavor: Flavor) -> None:
    more = stage(DOCKERFILES[flavor], "more")
    assert "ARG CUDA_ARCHS\n" in more and ("export CUDA_HOME=" in more) is (flavor == "gpu")


def test_the_base_script_is_posix_shell() -> None:
    assert subprocess.run(["sh", "-n", str(ROOT / "image/base.sh")], check=False).returncode == 0


def pull_base(folder: Path, pull: str) -> subprocess.CompletedProcess[str]:
    """Run base.sh with a `docker` whose pull runs the given script; debootstrap fails at once."""
    docker = f"case $1 in version) ;; pull) {pull} ;; *) exit 1 ;; esac"
    failing = "echo no mirror >&2; exit 1"
    for name, text in {"docker": docker, "debootstrap": failing, "apt-get": failing}.items():
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)
    environ = {"PATH": f"{folder}:/usr/bin:/bin", "TMPDIR": str(folder), "ANSWER_SECONDS": "1"}
    return subprocess.run(
        ["sh", str(ROOT / "image/base.sh")],
        env=environ,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_a_base_pull_has_no_time_limit_once_the_registry_answers(tmp_path: Path) -> None:
    done = pull_base(tmp_path, "echo 'bookworm-slim: Pulling from library/debian'; sleep 2.5")
    assert done.returncode == 0 and "debian:bookworm-slim was pulled" in done.stdout


def test_a_base_pull_without_an_answer_ends(tmp_path: Path) -> None:
    done = pull_base(tmp_path, "exec sleep 60")
    assert done.returncode != 0
    assert "failed: the registry did not answer within 1 s" in done.stdout


def test_a_failed_base_pull_prints_the_error_of_the_registry(tmp_path: Path) -> None:
    done = pull_base(
        tmp_path, "echo 'Error response from daemon: toomanyrequests: limit reached' >&2; exit 1"
    )
    assert done.returncode != 0
    assert "failed: Error response from daemon: toomanyrequests: limit reached" in done.stdout
    assert not list(tmp_path.glob("toolkit-base.*"))


def test_the_gpu_image_says_which_cuda_it_needs() -> None:
    text = DOCKERFILES["gpu"]
    assert 'ENV NVIDIA_REQUIRE_CUDA="cuda>=${CUDA_REQUIRED}"' in text
    needed = parse_arguments(text)["CUDA_REQUIRED"]
    assert parse_arguments(text)["CUDA_NVCC_VERSION"].rpartition(".")[0] == needed
    assert satisfied(f"cuda>={needed}", "580.65.06") is True
    assert satisfied(f"cuda>={needed}", "575.57.08") is False


def arguments_of_variant(variant: CudaVariant) -> dict[str, str]:
    return arguments_of(ImageRecipe("gpu", cuda=variant.major), DOCKERFILES["gpu"])


@pytest.mark.parametrize("variant", CUDA_VARIANTS, ids=lambda variant: variant.kind)
def test_a_variant_declares_its_oldest_driver_and_compiles_for_the_gpus_of_its_table(
    variant: CudaVariant,
) -> None:
    arguments = arguments_of_variant(variant)
    needed = f"cuda>={arguments['CUDA_REQUIRED']}"
    assert satisfied(needed, f"{variant.driver}.10") is True
    assert satisfied(needed, f"{variant.driver - 1}.10") is False
    archs = [divmod(int(arch), 10) for arch in arguments["CUDA_ARCHS"].split(",")]
    assert min(archs) == variant.oldest and max(archs)[0] == variant.newest


@pytest.mark.parametrize("variant", CUDA_VARIANTS, ids=lambda variant: variant.kind)
def test_the_packages_of_a_variant_are_exact_pins_of_its_cuda(variant: CudaVariant) -> None:
    arguments = arguments_of_variant(variant)
    names = ["image/requirements.txt"]
    for name in ("image/requirements-gpu.txt", "image/requirements-gpu-build.txt"):
        names.append(variant.requirements.get(name, name))
    pins = [pin for name in names for pin in parse_pins((ROOT / name).read_text(), arguments)]
    assert len({pin.key for pin in pins}) == len(pins)
    assert f"torch==={arguments['TORCH_VERSION']}" in [pin.line for pin in pins]
    majors = {found[1] for pin in pins if (found := re.search(r"-cu(\d+)$", pin.key))}
    assert majors == {str(variant.major)}
    assert {"nvidia-nccl-cu", "nvidia-cudnn-cu"} <= {pin.key.rstrip("0123456789") for pin in pins}


def cuda_folder(
    site: Path, wheels: dict[str, str], bin_folder: Path, nvcc: bool
) -> subprocess.CompletedProcess[str]:
    """Run cuda-compiler.sh on a folder of wheels, with an apt-get that has Debian's package or has none."""
    for name, text in wheels.items():
        path = site / "nvidia" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    bin_folder.mkdir()
    unpack = """
for name in bin2c cudafe++ fatbinary nvlink ptxas; do install -D /dev/null "$3/usr/bin/$name"; done
for name in nvcc cicc crt/link.stub; do install -D /dev/null "$3/usr/lib/nvidia-cuda-toolkit/bin/$name"; done
install -D /dev/null "$3/usr/lib/nvidia-cuda-toolkit/libdevice/libdevice.10.bc"
"""
    programs = {
        "python3": f"echo {site}",
        "apt-get": f'[ "$1" != download ] || {"touch nvcc.deb" if nvcc else "exit 100"}',
        "dpkg-deb": unpack,
        "find": '[ "$1" != /etc/apt ] || exit 0; exec /usr/bin/find "$@"',
    }
    for name, text in programs.items():
        (bin_folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (bin_folder / name).chmod(0o755)
    script = (ROOT / "image/cuda-compiler.sh").read_text()
    script = script.replace("/tmp/nvcc", str(bin_folder / "nvcc")).replace(
        "/var/lib/apt/lists", str(bin_folder / "lists")
    )
    environ = {"PATH": f"{bin_folder}:/usr/bin:/bin"}
    return subprocess.run(["sh", "-c", script], env=environ, capture_output=True, text=True, check=False)


NCCL = {"nccl/lib/libnccl.so.2": "nccl"}
CUDA_12 = {
    "cuda_runtime/include/cuda.h": "",
    "cuda_runtime/lib/libcudart.so.12": "cudart",
    "cuda_nvcc/include/crt/host_config.h": "",
    "cuda_cccl/include/nv/target": "",
    **NCCL,
}


def test_the_cuda_folder_of_the_cuda_13_wheels(tmp_path: Path) -> None:
    wheels = {"cu13/bin/nvcc": "", "cu13/lib/libcudart.so.13": "cudart", **NCCL}
    done = cuda_folder(tmp_path / "site", wheels, tmp_path / "bin", nvcc=False)
    assert done.returncode == 0, done.stderr
    cuda = tmp_path / "site/nvidia/cuda"
    assert (cuda / "bin/nvcc").exists() and (cuda / "lib64/libcudart.so").read_text() == "cudart"
    assert (tmp_path / "site/nvidia/nccl/lib/libnccl.so").read_text() == "nccl"


def test_the_cuda_folder_of_the_cuda_12_wheels_gets_nvcc_from_debian(tmp_path: Path) -> None:
    done = cuda_folder(tmp_path / "site", CUDA_12, tmp_path / "bin", nvcc=True)
    assert done.returncode == 0, done.stderr
    cuda = tmp_path / "site/nvidia/cuda"
    for name in ("bin/nvcc", "bin/cicc", "bin/crt/link.stub", "bin/ptxas", "nvvm/libdevice/libdevice.10.bc"):
        assert (cuda / name).exists(), name
    for name in ("include/cuda.h", "include/crt/host_config.h", "include/nv/target"):
        assert (cuda / name).exists(), name
    assert (cuda / "lib64/libcudart.so").read_text() == "cudart"
    assert "NVVMIR_LIBRARY_DIR = $(TOP)/nvvm/libdevice" in (cuda / "bin/nvcc.profile").read_text()


def test_without_debians_nvcc_the_build_fails_with_the_reason(tmp_path: Path) -> None:
    done = cuda_folder(tmp_path / "site", CUDA_12, tmp_path / "bin", nvcc=False)
    assert done.returncode != 0 and "no nvidia-cuda-toolkit (Debian: non-free)" in done.stderr


EXAMPLES = ROOT / "examples" / "nccl"


def downloads_of_examples() -> set[str]:
    """Return the folders below ``/src`` that the script of the examples provides for a build."""
    script = (EXAMPLES / "sources.sh").read_text()
    return {"wheels", *re.findall(r"^checkout [\w-]+/([\w-]+) [0-9a-f]{40}$", script, re.MULTILINE)}


def folders_of_example(text: str) -> set[str]:
    """Return the folders below ``/src`` that a build uses, without the link that the build creates."""
    return set(re.findall(r"/src/([\w-]+)(?![\w.-])", text)) - {"cuda"}


def test_the_compiler_of_the_examples_is_the_locked_one_of_the_gpu_image() -> None:
    pins = parse_pins(
        (ROOT / "image/requirements-gpu-build.txt").read_text(), parse_arguments(DOCKERFILES["gpu"])
    )
    lock = parse_lock((ROOT / LOCK_FILE).read_text())
    lines = (EXAMPLES / "requirements.txt").read_text().replace("\\\n", " ").splitlines()
    found = {words[0]: set(words[1:]) for line in lines if (words := line.split("#")[0].split())}
    expected = {
        pin.line: {f"--hash=sha256:{digest}" for digest in lock[(pin.key, pin.version)].values()}
        for pin in pins
    }
    # The header is of the same CUDA release. The image does not contain it, so the lock does not either.
    (header,) = found.keys() - expected.keys()
    cuda = parse_arguments(DOCKERFILES["gpu"])["CUDA_REQUIRED"]
    assert header.startswith(f"nvidia-nvml-dev=={cuda}.") and len(found.pop(header)) == 2
    assert found == expected


@pytest.mark.parametrize("name", ["tests", "efa"])
def test_an_example_builds_on_the_gpu_image_from_what_its_script_downloads(name: str) -> None:
    text = (EXAMPLES / f"Dockerfile.{name}").read_text()
    assert parse_arguments(text)["BASE"] == ImageRecipe("gpu").reference
    assert re.findall(r"^FROM (.*)$", text, re.MULTILINE) == ["${BASE} AS build", "${BASE}"]
    assert not re.search(r"^RUN --|<<|^COPY .*--ch(mod|own)|^#\s*syntax", text, re.MULTILINE)
    assert folders_of_example(text) <= downloads_of_examples()
    # The folder of CUDA in the wheels, and Debian's Open MPI, which these Dockerfiles expect.
    arguments = parse_arguments(DOCKERFILES["gpu"])
    assert set(re.findall(r"/cu(\d+)", text)) == {arguments["CUDA_REQUIRED"].partition(".")[0]}
    assert arguments["OPENMPI"].startswith(DEBIANS_OPENMPI)


def test_the_examples_use_all_that_their_script_downloads() -> None:
    texts = [(EXAMPLES / f"Dockerfile.{name}").read_text() for name in ("tests", "efa")]
    assert set().union(*map(folders_of_example, texts)) == downloads_of_examples()


def test_the_script_of_the_examples_downloads_a_fixed_commit(tmp_path: Path) -> None:
    """The script runs with stubs of git and pip that record their arguments."""
    (tmp_path / "nccl").mkdir()
    shutil.copy(EXAMPLES / "sources.sh", tmp_path / "nccl")
    for name in ("git", "python3"):
        stub = tmp_path / name
        stub.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/calls\n[ "$1" != init ] || mkdir -p "$3"\n')
        stub.chmod(0o755)
    for _ in range(2):  # a second run updates what the first run downloaded
        path = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
        subprocess.run(["sh", str(tmp_path / "nccl/sources.sh")], env=path, check=True)
    calls = (tmp_path / "calls").read_text().splitlines()
    fetched = {line.split()[-2]: line.split()[-1] for line in calls if " fetch " in line}
    assert all(url.startswith("https://github.com/") for url in fetched) and len(fetched) == 4
    assert {line.split()[-1] for line in calls if " checkout " in line} == set(fetched.values())
    assert "--require-hashes --dest wheels -r requirements.txt" in calls[-1]
