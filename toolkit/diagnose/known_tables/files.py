"""Words of the loader, of Python and of PyTorch's files: what a script needs and does not find."""

from __future__ import annotations

ROWS: tuple[tuple[str, str, str, str], ...] = (
    (
        "glibc",
        "version `GLIBC | version `CXXABI | version 'GLIBC",
        "A program or library was built on a newer system than the image is.",
        "no programs from mounts: that were built elsewhere; else an image with a newer base",
    ),
    (
        "library-missing",
        "error while loading shared libraries | ImportError: … cannot open shared object file | "
        "OSError: … cannot open shared object file",
        "A library is not in the image, or not on LD_LIBRARY_PATH.",
        "an image with it; no LD_LIBRARY_PATH in env: that hides the image's",
    ),
    (
        "symbol",
        "ImportError: … undefined symbol | OSError: … undefined symbol | symbol lookup error:",
        "Two libraries do not fit each other: an extension built for another PyTorch, or a stray "
        "LD_LIBRARY_PATH.",
        "build the extension in the image; no LD_LIBRARY_PATH in env:",
    ),
    (
        "exec-format",
        "Exec format error",
        "A program is for another kind of processor, or a script without its first line.",
        "an image for that host's processor; #! in the script",
    ),
    (
        "module",
        "ModuleNotFoundError: No module named",
        "A Python package is not in the image, or a file of yours not in the folder that is sent.",
        "toolkit image build --pip requirements.txt && toolkit up; or --workdir at the top of your code, if "
        "it is a module of yours",
    ),
    (
        "script",
        "can't open file … No such file or directory",
        "The script is not in the job's folder.",
        "toolkit run from the script's folder, or --workdir; .toolkitignore",
    ),
    (
        "file-missing",
        "FileNotFoundError: [Errno 2]",
        "A file is not there on that host: only code is sent with a job.",
        "data: or mounts: in hosts.yaml, and paths as ranks see them; toolkit exec -- ls shows who lacks it",
    ),
    (
        "no-permission",
        "PermissionError: [Errno 13] | cannot create … Permission denied | "
        "cannot open … Permission denied | mkdir: … Permission denied | PermissionError: [Errno 1]",
        "The rank, which runs as the ssh user, may not use that file or folder.",
        "toolkit check writes to every folder of mounts: as the ranks would; chown or chmod on that host",
    ),
    (
        "checkpoint-torn",
        "PytorchStreamReader failed | unexpected EOF, expected … more bytes | "
        "invalid magic number; corrupt file | EOFError: Ran out of input | pickle data was truncated | "
        "Error while deserializing header",
        "A checkpoint is not whole: its writer died, or another rank wrote to it at the same time.",
        "load the one before it; write as examples/checkpoint.py does, by rank 0 alone",
    ),
    (
        "checkpoint-shape",
        "Error(s) in loading state_dict | size mismatch for",
        "A checkpoint is of another model than the one that it is loaded into.",
        "the same arguments as when it was written; names that begin with module. are "
        "DistributedDataParallel's",
    ),
    (
        "checkpoint-pickle",
        "Weights only load failed",
        "A checkpoint holds more than weights, which torch.load refuses since PyTorch 2.6.",
        "weights_only=False for files that you trust, or save state_dicts alone",
    ),
)
