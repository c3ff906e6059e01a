"""Words of CUDA, its libraries, NVIDIA's driver and the kernel: GPUs and machines in trouble."""

from __future__ import annotations

ROWS: tuple[tuple[str, str, str, str], ...] = (
    (
        "cuda-memory",
        "CUDA out of memory | CUDA_ERROR_OUT_OF_MEMORY | cudaErrorMemoryAllocation | "
        "Cuda failure … out of memory | CUDA error: out of memory | CUBLAS_STATUS_ALLOC_FAILED",
        "The GPU's memory is full.",
        "a smaller batch; toolkit status shows who else computes on that GPU",
    ),
    (
        "cuda-ordinal",
        "invalid device ordinal",
        "A rank asked for a GPU with a number that its container has not.",
        "use LOCAL_RANK, not RANK, as the GPU's number; slots: no larger than gpus: in hosts.yaml",
    ),
    (
        "cuda-driver-old",
        "driver version is insufficient for CUDA runtime | NVIDIA driver on your system is too old | "
        "forward compatibility was attempted on non supported HW | unsatisfied condition: cuda",
        "The host's NVIDIA driver is older than the CUDA in the image needs.",
        "toolkit check says which driver the image needs; update it there, or take an image with an "
        "older CUDA",
    ),
    (
        "cuda-no-device",
        "no CUDA-capable device is detected | No CUDA GPUs are available | "
        "Found no NVIDIA driver on your system",
        "The container sees no GPU.",
        "toolkit smoke shows what each container sees; gpus: in hosts.yaml; no CUDA_VISIBLE_DEVICES in env:",
    ),
    (
        "cuda-no-kernel",
        "no kernel image is available for execution | "
        "is not compatible with the current PyTorch installation",
        "The image's programs were not built for this kind of GPU.",
        "an image whose PyTorch or extensions know this GPU (TORCH_CUDA_ARCH_LIST)",
    ),
    (
        "cuda-assert",
        "device-side assert triggered",
        "A kernel met a value that it must not have, most often a label or an index out of range.",
        'env: {CUDA_LAUNCH_BLOCKING: "1"} in hosts.yaml shows the line; compare labels with the number '
        "of classes",
    ),
    (
        "cuda-illegal-access",
        "illegal memory access was encountered | CUDA_ERROR_ILLEGAL_ADDRESS | misaligned address",
        "A kernel touched memory that is not its own.",
        'env: {CUDA_LAUNCH_BLOCKING: "1"} in hosts.yaml shows the line; on one host only, dmesg for Xid',
    ),
    (
        "gpu-ecc",
        "uncorrectable ECC error encountered | CUDA_ERROR_ECC_UNCORRECTABLE | NVRM: Xid … ): 48, | "
        "NVRM: Xid … ): 63, | NVRM: Xid … ): 64, | NVRM: Xid … ): 94, | NVRM: Xid … ): 95,",
        "A GPU's memory has an error that it cannot correct.",
        "nvidia-smi -q -d ECC,ROW_REMAPPER on the host; reset or replace the GPU, --exclude HOST until then",
    ),
    (
        "gpu-off-bus",
        "has fallen off the bus | NVRM: Xid … ): 79, | GPU is lost",
        "A GPU no longer answers on its PCI bus: power, heat, or a broken card.",
        "reboot the host; if it comes again, power and cooling; --exclude HOST until then",
    ),
    (
        "gpu-gsp",
        "NVRM: Xid … ): 119, | NVRM: Xid … ): 120, | Timeout waiting for RPC from GSP",
        "The GPU's own processor does not answer its driver.",
        "reboot the host and update its driver",
    ),
    (
        "gpu-nvlink",
        "NVRM: Xid … ): 74, | uncorrectable NVLink error",
        "A connection between two GPUs of one host is faulty.",
        "nvidia-smi nvlink -e on the host; --exclude HOST until it is seen to",
    ),
    (
        "gpu-xid",
        "NVRM: Xid",
        "The driver reports trouble with a GPU; the number behind Xid says which.",
        "NVIDIA's list of Xid errors; 13, 31 and 43 are most often the program's own fault",
    ),
    (
        "cuda-launch",
        "unspecified launch failure | CUDA_ERROR_LAUNCH_FAILED",
        "A kernel crashed on the GPU.",
        'env: {CUDA_LAUNCH_BLOCKING: "1"} in hosts.yaml shows the line; dmesg on that host for Xid',
    ),
    (
        "cuda-busy",
        "CUDA-capable device(s) is/are busy or unavailable | devices are busy or unavailable",
        "A GPU takes no other process: somebody has it for himself, or its compute mode is exclusive.",
        "toolkit status shows who holds it; nvidia-smi -c 0 on the host",
    ),
    (
        "nvml-mismatch",
        "Driver/library version mismatch",
        "The NVIDIA driver was updated, and the kernel still runs the old one.",
        "reboot the host, then toolkit up",
    ),
    (
        "nvml-lost",
        "Failed to initialize NVML: Unknown Error",
        "The running container has lost its GPUs, as after systemctl daemon-reload on some hosts.",
        "toolkit down, then toolkit up; toolkit check warns of hosts where this happens",
    ),
    (
        "cuda-fork",
        "Cannot re-initialize CUDA in forked subprocess",
        "A data loader's worker used CUDA after a fork.",
        'no CUDA in the data set, or multiprocessing_context="spawn" for the DataLoader',
    ),
    (
        "cublas-init",
        "CUBLAS_STATUS_NOT_INITIALIZED | CUBLAS_STATUS_EXECUTION_FAILED | CUDNN_STATUS_NOT_INITIALIZED | "
        "CUDNN_STATUS_EXECUTION_FAILED",
        "cuBLAS or cuDNN could not work, most often for want of GPU memory or after an earlier CUDA error.",
        'a smaller batch; env: {CUDA_LAUNCH_BLOCKING: "1"} in hosts.yaml shows the first error',
    ),
    (
        "two-devices",
        "Expected all tensors to be on the same device",
        "A tensor stayed on the CPU or on another GPU.",
        '.to(device) for it; torch.cuda.set_device(int(os.environ["LOCAL_RANK"])) at the beginning',
    ),
    (
        "loader-killed",
        "is killed by signal: Killed",
        "The kernel ended a data loader's worker, most often for want of memory.",
        "fewer num_workers; dmesg and free -h on that host",
    ),
    (
        "shm-full",
        "is killed by signal: Bus error | insufficient shared memory (shm) | "
        "might be out of shared memory | workers are out of shared memory | "
        "unable to open shared memory object | unable to write to file </torch_ | "
        "unable to resize file </torch_ | unable to mmap … </torch_ | Signal: Bus error | "
        "Bus error (core dumped) | Signal 7 (SIGBUS)",
        "/dev/shm of the container is full; data loaders hand their batches over through it.",
        "shm_size: 16g in hosts.yaml, then toolkit up; or fewer num_workers",
    ),
    (
        "out-of-memory",
        "oom-kill: | Out of memory: Killed process | Memory cgroup out of memory | Signal 9 (SIGKILL) | "
        "exitcode: -9 | exitcode : -9 | exitcode  : -9",
        "A rank was killed, most often by the kernel, for want of the host's memory.",
        "dmesg and free -h on that host; fewer ranks, num_workers or a smaller batch",
    ),
    (
        "segfault",
        "Segmentation fault | Signal 11 (SIGSEGV) | exitcode: -11 | exitcode : -11 | exitcode  : -11",
        "A rank touched memory that is not its own: a compiled extension, or libraries that do not fit "
        "each other.",
        'env: {PYTHONFAULTHANDLER: "1"} in hosts.yaml shows where',
    ),
    (
        "illegal-instruction",
        "Illegal instruction | Signal 4 (SIGILL)",
        "The image's programs use instructions that this host's processor has not.",
        "lscpu on the host; an image that was built on the oldest of the hosts",
    ),
    (
        "host-hung-task",
        "blocked for more than … seconds",
        "A process waits for a disk or a network file system that does not answer.",
        "dmesg, findmnt and iostat on the host; the server behind a share in mounts:",
    ),
    (
        "host-disk-error",
        "blk_update_request: … error | I/O error, dev | Buffer I/O error on dev | EXT4-fs error | "
        "XFS … Corruption",
        "A disk of the host has errors.",
        "smartctl -a on the host; replace the disk, --exclude HOST until then",
    ),
    (
        "host-nfs",
        "nfs: server … not responding | ceph: mds … hung | Lustre: … Connection to … was lost",
        "The server of a network file system does not answer this host.",
        "findmnt and the network to that server on the host; data: in hosts.yaml stages data to local disks",
    ),
    (
        "host-link-down",
        "Link is Down | mlx5_core … Link down",
        "A network card of the host lost its link.",
        "cable and switch; toolkit check shows the links of all hosts",
    ),
    (
        "host-hardware",
        "mce: [Hardware Error] | EDAC MC … UE memory | PCIe Bus Error: severity=Uncorrect",
        "The host's processor, memory or bus reports a fault of the hardware.",
        "the machine's own log (ipmitool sel list); --exclude HOST until it is seen to",
    ),
)
